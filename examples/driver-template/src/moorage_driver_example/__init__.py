"""A driver for the agent `example-agent`, which prints a JSON object a line.

`events` says what they mean (pure), `driver` starts the program.
"""

from moorage_driver_example.driver import ExampleDriver

__all__ = ["ExampleDriver"]
