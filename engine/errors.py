"""Errors of the engine: a broken caller or a broken record, never a broken world (that is an event)."""


class EngineError(Exception):
    """Base of every error the engine raises."""


class NotCanonical(EngineError):
    """A value that has no canonical bytes, or bytes that are not canonical.

    Attributes:
        path: where in the value, as `$.data.step`.
        why: what is wrong there.
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class EventInvalid(EngineError):
    """An event that does not say what its type must say.

    Attributes:
        type: event type as given.
        key: the first offending key, dotted; empty when the envelope itself is at fault.
        why: what is wrong with it.
    """

    def __init__(self, type_: str, key: str, why: str) -> None:
        super().__init__(f"event {type_ or '?'}: {key or 'envelope'}: {why}")
        self.type = type_
        self.key = key
        self.why = why


class PolicyInvalid(EngineError):
    """A recovery policy with an unknown or ill-typed key.

    Attributes:
        key: the key at fault.
        why: what is wrong, with the allowed values.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"recovery policy: {key}: {why}")
        self.key = key
        self.why = why


class FoldMisused(EngineError):
    """The shell folded records out of order, or asked an empty state for a decision's number."""


class StateUnreadable(EngineError):
    """Bytes that are no state this version can go on from."""
