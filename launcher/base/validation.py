"""pydantic's names, which all modules import from here.

So pydantic is imported as a whole, by one thread: threads that import different parts of it at the same time can meet a
half-imported one ("partially initialized module"), because its modules import each other.
"""

import os

# It would read the metadata of all installed packages to find plugins for itself, for 15 ms.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails

__all__ = [
    "AfterValidator",
    "BaseModel",
    "ConfigDict",
    "ErrorDetails",
    "Field",
    "SerializerFunctionWrapHandler",
    "StringConstraints",
    "TypeAdapter",
    "ValidationError",
    "create_model",
    "field_validator",
    "model_serializer",
    "model_validator",
]
