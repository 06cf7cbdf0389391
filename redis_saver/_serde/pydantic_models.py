"""What this package uses of pydantic's models beyond their interface (pydantic 2): the slots of an instance, and how a class is validated.

No other Python module reaches into them (`native.c` sets the same slots). If they have changed, `is_plain` is false for every class, and all messages
take the ordinary path.
"""

from __future__ import annotations

import operator
from collections.abc import Set as AbstractSet
from typing import Any, Final

from pydantic import BaseModel

_SLOTS: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
SETTERS: Final[tuple[Any, ...]] = tuple(getattr(vars(BaseModel).get(slot), "__set__", None) for slot in _SLOTS)
"""The setters of an instance's slots. `BaseModel.__setattr__` is slow, and so is looking them up by name."""
KNOWN: Final = None not in SETTERS and hasattr(BaseModel, "__pydantic_decorators__")
"""Whether pydantic has all of this."""
extra_of: Final = operator.attrgetter("__pydantic_extra__")
"""The fields of an instance that its class does not declare, if any."""


def validators_of(cls: type[BaseModel]) -> AbstractSet[str]:
    """The names of a class's model validators, in their order."""
    return cls.__pydantic_decorators__.model_validators.keys()


def is_plain(cls: type[BaseModel]) -> bool:
    """Whether nothing but its fields and its model validators decide how a class is serialized and validated."""
    if not KNOWN:
        return False
    decorators = cls.__pydantic_decorators__
    others = (
        decorators.validators,
        decorators.field_validators,
        decorators.root_validators,
        decorators.field_serializers,
        decorators.model_serializers,
        decorators.computed_fields,
        cls.__private_attributes__,
        cls.__pydantic_post_init__,
    )
    return (
        not any(others)
        and cls.model_config == {"extra": "allow"}
        and cls.model_dump is BaseModel.model_dump
        and cls.__new__ is object.__new__
        and cls.__setattr__ is BaseModel.__setattr__
        and all(_known_field(field) for field in cls.model_fields.values())
        and all(name.isidentifier() for name in cls.model_fields)
    )


def _known_field(field: Any) -> bool:
    """Whether nothing but its annotation decides how a field is validated and serialized."""
    unset = ("alias", "validation_alias", "serialization_alias", "exclude", "exclude_if", "discriminator", "frozen")
    return all(getattr(field, name, None) is None for name in unset) and all(
        # Validation makes strings of ids that are numbers; a string stays as it is.
        vars(entry) == {"coerce_numbers_to_str": True}
        for entry in field.metadata
    )
