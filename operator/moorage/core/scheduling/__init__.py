"""Q: whose turn it is, and how the wait is explained. Pure: what time it is comes as an argument."""
