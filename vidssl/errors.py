"""The errors that a user can cause. Each message is one line: what, the value, the limit, what to do."""


class VidsslError(Exception):
    """Anything that the user can mend; tools print it as one line and exit with status 2."""


class ConfigError(VidsslError):
    """A run, or a part of it, is described wrongly."""


class DataError(VidsslError):
    """A list, a record or a whole data set cannot be used."""


class DecodeError(DataError):
    """A video cannot be opened or decoded."""


class NoVideoError(DecodeError):
    """A file can be read, but there is no video stream in it."""


class TooLargeError(DecodeError):
    """The frames of a video are larger than the limit."""


class CheckpointError(VidsslError):
    """A checkpoint is missing, damaged, or not the kind that was asked for."""


class TrainingError(VidsslError):
    """Training cannot go on: the loss is not finite, or the machine cannot do what was asked."""


class PeerError(VidsslError):
    """Another process of the run failed or is gone; that one says why."""


class Interrupted(BaseException):
    """The run was asked to stop by a signal. It is no mistake, so `except Exception` lets it pass.

    Attributes:
        signal: Its number.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal
