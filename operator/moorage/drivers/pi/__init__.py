"""Driver `pi`: the coding agent pi, unmodified, through `pi --mode json -p`.

`events` says what its lines mean (pure), `config` what it is told of its model, `driver` starts it.
"""

from moorage.drivers.pi.driver import PiDriver

__all__ = ["PiDriver"]
