"""From a signature and a docstring to JSON Schema, and from a model's arguments to Python values."""

from __future__ import annotations

import inspect
import json
import sys
import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NotRequired, Required, Union

import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticUndefined, SchemaError

from everyturn.errors import ToolDefinitionError
from everyturn.signature import Signature
from everyturn.tool_errors import Problem, refuse


class SignatureSchema:
    """The JSON Schema of a handler's parameters, and the validation of arguments against it."""

    def __init__(self, tool: str, signature: Signature, descriptions: Mapping[str, str]) -> None:
        if signature.stars:
            raise ToolDefinitionError(
                f"Tool {tool!r}: a model cannot be told what {' and '.join(signature.stars)} take. "
                "Name each parameter, or give the schema by hand: et.Tool(name, schema, handler)."
            )
        for parameter in signature.parameters.values():
            if parameter.name in ("ctx", "context") and parameter.annotation is parameter.empty:
                raise ToolDefinitionError(
                    f"Tool {tool!r}: parameter {parameter.name!r} has no annotation, so the model would give it. "
                    "Annotate it et.Context to have the context injected, or rename it."
                )
        self._tool = tool
        self._parameters = signature.parameters
        fields = {
            f"p{index}": _field(parameter, descriptions.get(parameter.name))
            for index, parameter in enumerate(signature.parameters.values())
        }
        self._names = dict(zip(fields, signature.parameters, strict=True))
        keys = [info.alias for _, info in fields.values()]
        if repeated := {key for key in keys if keys.count(key) > 1}:
            raise ToolDefinitionError(f"Tool {tool!r}: two parameters have the alias {repeated.pop()!r}.")
        try:
            self._model, self.schema = _build(tool, fields)
        except Exception as error:
            self._blame(fields, error)
            raise ToolDefinitionError(f"Tool {tool!r}: no JSON Schema could be made ({error}).") from error

    def parse(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments as Python values, by parameter; what was left out is left to Python's defaults."""
        try:
            found = self._model.model_validate(arguments)
        except ValidationError as error:
            raise refuse(self._tool, _problems(error), list(self.schema["properties"])) from None
        given = found.model_fields_set
        return {
            name: getattr(found, field)
            for field, name in self._names.items()
            if field in given or not _has_python_default(self._parameters[name])
        }

    def _blame(self, fields: dict[str, tuple[Any, FieldInfo]], error: Exception) -> None:
        """Raise naming the parameter, when one of them alone fails too."""
        for field, definition in fields.items():
            try:
                _build(self._tool, {field: definition})
            except Exception as cause:
                reason = str(cause).partition("\n")[0].partition(". ")[0]
                raise ToolDefinitionError(
                    f"Tool {self._tool!r}: the type of parameter {self._names[field]!r} has no JSON Schema: "
                    f"{reason.rstrip('.')}. Use plain types, dataclasses, TypedDicts or pydantic models."
                ) from error


def _has_python_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not parameter.empty and not isinstance(parameter.default, FieldInfo)


def _field(parameter: inspect.Parameter, documented: str | None) -> tuple[Any, FieldInfo]:
    hint = Any if parameter.annotation is parameter.empty else _modern(parameter.annotation)
    notes = _notes(hint)
    if isinstance(parameter.default, FieldInfo):
        hint = Annotated[hint, parameter.default]
        notes = [*_notes(hint), *notes]
    key = next((n.alias for n in _metadata(hint) if isinstance(n, FieldInfo) and n.alias), parameter.name)
    description = "\n".join(dict.fromkeys(note for note in (*notes, documented) if note)) or None
    if not _has_python_default(parameter):
        return hint, Field(alias=key, description=description)
    if parameter.default is None and not _admits_none(hint):
        hint = hint | None if isinstance(hint, type) else Union[hint, None]  # noqa: UP007
    return hint, Field(parameter.default, alias=key, description=description)


def _metadata(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()


def _notes(hint: Any) -> list[str]:
    """Descriptions given with `Annotated`: in a Field, as plain text, or as a Doc (PEP 727)."""
    found: list[str] = []
    for item in _metadata(hint):
        text = item if isinstance(item, str) else getattr(item, "description", None)
        text = text or getattr(item, "documentation", None)
        if isinstance(text, str):
            found.append(text)
    if typing.get_origin(hint) in (Union, types.UnionType):
        parts = [part for member in typing.get_args(hint) for part in _metadata(member)]
        found += [part for part in parts if isinstance(part, str)]
    return found


def _admits_none(hint: Any) -> bool:
    try:
        TypeAdapter(hint).validate_python(None)
    except ValidationError:
        return False
    except (PydanticUserError, SchemaError):  # the type is refused later, by name
        return True
    return True


def _modern(hint: Any) -> Any:
    """The hint without TypedDicts of `typing`: pydantic needs those of typing_extensions before 3.12."""
    if sys.version_info >= (3, 12):
        return hint
    if typing.is_typeddict(hint):
        return typing_extensions.TypedDict(hint.__name__, dict(_members(hint)))  # type: ignore[operator]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if not args or origin is typing.Literal:
        return hint
    if origin is Annotated:
        return Annotated[(_modern(args[0]), *args[1:])]
    changed = tuple(arg if isinstance(arg, list) or arg is ... else _modern(arg) for arg in args)
    if changed == args:
        return hint
    if origin in (Union, types.UnionType):
        return Union[changed]  # noqa: UP007
    return origin[changed]


def _members(hint: Any) -> Iterator[tuple[str, Any]]:
    """The keys of a TypedDict; Required is not seen by `typing` itself where annotations are postponed."""
    needed: dict[Any, bool] = {Required: True, NotRequired: False}
    for key, kind in typing_extensions.get_type_hints(hint, include_extras=True).items():
        marked: Any = typing.get_origin(kind)
        is_needed = needed.get(marked, key in hint.__required_keys__)
        inner = typing.get_args(kind)[0] if marked in needed else kind
        yield key, (Required if is_needed else NotRequired)[_modern(inner)]


class _Generator(GenerateJsonSchema):
    # A default with no JSON form, and one branch of a union without schema, are left out of the schema.
    ignored_warning_kinds = {"non-serializable-default", "skipped-choice"}  # noqa: RUF012

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value


def _build(tool: str, fields: dict[str, tuple[Any, FieldInfo]]) -> tuple[type[BaseModel], dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names and defaults inside the user's own models
        model: type[BaseModel] = create_model(  # type: ignore[call-overload]
            tool, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
        made = model.model_json_schema(schema_generator=_Generator)
    flat = _inline(made)
    return model, {
        "type": "object",
        "properties": flat.get("properties", {}),
        "required": flat.get("required", []),
        "additionalProperties": False,
        **({"$defs": flat["$defs"]} if "$defs" in flat else {}),
    }


def _inline(made: dict[str, Any]) -> dict[str, Any]:
    """The schema with its references replaced by what they stand for; only recursive types keep theirs."""
    definitions: dict[str, Any] = made.pop("$defs", {})
    kept: dict[str, Any] = {}

    def visit(node: Any, above: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [visit(item, above) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            if _reaches(definitions, name, name):
                if name not in kept:
                    kept[name] = None
                    kept[name] = visit(_untitled(definitions[name]), above)
                return node
            beside = {key: item for key, item in node.items() if key != "$ref"}
            return {**visit(_untitled(definitions[name]), above), **beside}
        out: dict[str, Any] = {}
        for key, item in node.items():
            if key in ("properties", "patternProperties") and isinstance(item, dict):
                out[key] = {name: visit(part, above) for name, part in item.items()}
            elif key in ("const", "enum", "examples") or (key == "default" and _is_json(item)):
                out[key] = item
            elif key not in ("default", "discriminator"):  # a mapping to definitions, which JSON Schema itself ignores
                out[key] = visit(item, above)
        return out

    flat: dict[str, Any] = visit(made, ())
    return {**flat, "$defs": kept} if kept else flat


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _untitled(definition: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in definition.items() if key != "title"}


def _reaches(definitions: dict[str, Any], start: str, goal: str) -> bool:
    seen: set[str] = set()
    todo: list[Any] = [definitions[start]]
    while todo:
        node = todo.pop()
        if isinstance(node, list):
            todo.extend(node)
        elif isinstance(node, dict):
            reference = node.get("$ref")
            if isinstance(reference, str):
                name = reference.removeprefix("#/$defs/")
                if name == goal:
                    return True
                if name not in seen:
                    seen.add(name)
                    todo.append(definitions[name])
            todo.extend(node.values())
    return False


def _problems(error: ValidationError) -> list[Problem]:
    found: list[Problem] = []
    for item in error.errors(include_url=False, include_context=False):
        where = list(item["loc"])
        if item["type"] == "missing":
            found.append(Problem(where, "is required"))
        elif item["type"] == "extra_forbidden" and len(where) == 1:
            found.append(Problem(where, "is unknown"))
        else:
            found.append(Problem(where, item["msg"], item.get("input", PydanticUndefined)))
    return found
