"""DurableExecutionStore: the port and its adapters."""
