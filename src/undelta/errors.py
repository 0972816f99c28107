"""Errors a user can mend: each message says what was expected, what came, and what to do."""


class UndeltaError(Exception):
    """Base of all errors below; the command line prints it as one line and exits with code 2."""


class ConfigError(UndeltaError):
    """A scenario, an attack's settings or an argument makes no sense."""


class DataError(UndeltaError):
    """A source of private images is missing, unreadable or too small."""


class ObservationError(UndeltaError):
    """A file or value claimed to be an Observation is not a sound one."""


class MissingKnowledge(UndeltaError):
    """An attack needs something that this Observation does not reveal."""


class RankFailure(UndeltaError):
    """One of the processes that share an attack was lost, and with it the run; its checkpoint is not."""


class NoRoom(ConfigError):
    """A disk is full or cannot be written to; work that met it is not done, and resumes when there is room."""


class DatabaseAway(UndeltaError):
    """A study's database does not answer any more; what it holds is not lost."""
