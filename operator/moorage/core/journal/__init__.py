"""The record, its canonical bytes and the hash chain."""
