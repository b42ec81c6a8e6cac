"""A tool's JSON Schema given by hand: checked when the tool is made, and held against a model's arguments."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from everyturn.errors import InvalidValue, ToolDefinitionError
from everyturn.jsonable import clean
from everyturn.signature import Signature
from everyturn.tool_errors import Problem, refuse


class GivenSchema:
    """A hand-written schema and how the handler is called: by keywords, or with one dict of all arguments."""

    def __init__(self, tool: str, schema: Any, signature: Signature | None) -> None:
        self._tool = tool
        self.schema = _checked(tool, schema)
        properties: dict[str, Any] = self.schema["properties"]
        names = list(signature.parameters) if signature else list(properties)
        self.whole = names[0] if signature and _takes_all_in_one(signature, properties) else None
        """The parameter that takes all arguments as one dict, if the handler is written that way."""
        self.context = tuple(
            name for name in names if name in ("ctx", "context") and name not in properties and name != self.whole
        )
        named = [name for name in names if name not in self.context]
        open_ended = signature is not None and any(star.startswith("**") for star in signature.stars)
        self._needed: list[str] = []
        if self.whole is None and signature is not None:
            self._needed = [n for n in named if signature.parameters[n].default is signature.parameters[n].empty]
            _check_fit(tool, named, self._needed, properties, open_ended)
        allows_more = self.schema.get("additionalProperties", False) is not False
        self._open = (allows_more or "patternProperties" in self.schema) and (
            self.whole is not None or open_ended or signature is None
        )

    def parse(self, arguments: dict[str, Any]) -> dict[str, Any]:
        properties = self.schema["properties"]
        problems = [Problem([key], "is unknown") for key in arguments if key not in properties and not self._open]
        absent = [key for key in self._needed if key not in arguments]
        problems += [Problem([key], "is required") for key in absent]
        for error in self._validator.iter_errors(arguments):
            if error.validator == "required":
                missing = [key for key in error.validator_value if key not in error.instance]
                where = list(error.absolute_path)
                problems += [Problem([*where, key], "is required") for key in missing]
            elif error.validator != "additionalProperties" or error.absolute_path:
                problems.append(Problem(list(error.absolute_path), _expected(error), error.instance))
        if problems:
            raise refuse(self._tool, problems, list(properties))
        return {self.whole: dict(arguments)} if self.whole is not None else dict(arguments)

    @cached_property
    def _validator(self) -> Any:
        from jsonschema.validators import (  # type: ignore[import-untyped]
            Draft202012Validator,
            validator_for,
        )
        from referencing import Registry

        # An empty registry: a reference to another document is an error, never a download.
        kind = validator_for(self.schema, default=Draft202012Validator)
        return kind(self.schema, registry=Registry())


def _checked(tool: str, schema: Any) -> dict[str, Any]:
    from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
    from jsonschema.validators import Draft202012Validator, validator_for

    if not isinstance(schema, dict):
        raise ToolDefinitionError(
            f"Tool {tool!r}: its schema is {schema!r:.80}, and must be a dict: "
            "{'type': 'object', 'properties': {…}, 'required': […]}."
        )
    try:
        copied: dict[str, Any] = clean(schema, name="schema")
    except InvalidValue as error:
        raise ToolDefinitionError(f"Tool {tool!r}: its schema is not JSON. {error}") from None
    made = {**copied, "type": copied.get("type", "object"), "properties": copied.get("properties", {})}
    if made["type"] != "object":
        raise ToolDefinitionError(
            f"Tool {tool!r}: its schema is of type {made['type']!r}; that of arguments is 'object'."
        )
    try:
        validator_for(made, default=Draft202012Validator).check_schema(made)
    except SchemaError as error:
        where = "/".join(str(step) for step in error.absolute_path) or "the schema"
        raise ToolDefinitionError(f"Tool {tool!r}: not a JSON Schema, at {where}: {error.message}.") from None
    _check_references(tool, made)
    is_closed = "patternProperties" not in made and made.get("additionalProperties", False) is False
    if is_closed and (unknown := set(made.get("required", [])) - set(made["properties"])):
        raise ToolDefinitionError(
            f"Tool {tool!r}: its schema requires {min(unknown)!r}, which is not in its properties."
        )
    return made


def _check_references(tool: str, schema: dict[str, Any]) -> None:
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    todo: list[Any] = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except Unresolvable:
                raise ToolDefinitionError(
                    f"Tool {tool!r}: its schema refers to {reference!r}, which it does not hold. Nothing is downloaded."
                ) from None
        todo.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())


def _takes_all_in_one(signature: Signature, properties: dict[str, Any]) -> bool:
    """`handler(args)` or `handler(args, ctx)`, where `args` is not a property of the schema."""
    first, *rest = [*signature.parameters.values(), None]
    if first is None or first.name in properties or first.kind is first.KEYWORD_ONLY:
        return False
    if first.name in ("ctx", "context") and rest == [None]:
        return False
    kind = typing.get_origin(first.annotation) or first.annotation
    is_dict = kind in (first.empty, Any) or typing.is_typeddict(kind) or _is_mapping(kind)
    return is_dict and all(other is None or other.name in ("ctx", "context") for other in rest)


def _is_mapping(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Mapping)


def _check_fit(tool: str, named: list[str], needed: list[str], properties: dict[str, Any], open_ended: bool) -> None:
    if missing := [name for name in needed if name not in properties]:
        raise ToolDefinitionError(
            f"Tool {tool!r}: its handler needs {missing[0]!r}, which is not in the schema's properties. "
            "Add it to the schema, give it a default, or let the handler take one dict."
        )
    if surplus := [key for key in properties if key not in named and not open_ended]:
        raise ToolDefinitionError(
            f"Tool {tool!r}: its schema has the property {surplus[0]!r}, which the handler does not take. "
            "Add the parameter, or let the handler take one dict."
        )


def _expected(error: Any) -> str:
    message: str = error.message
    value = error.validator_value
    match error.validator:
        case "type":
            return f"must be of type {' or '.join(value) if isinstance(value, list) else value}"
        case "enum":
            return f"must be one of {', '.join(map(repr, value))}"
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "pattern" | "format" | "const":
            return f"must satisfy {error.validator} {value!r}"
        case _:
            return message if len(message) <= 200 else f"does not satisfy {error.validator!r}"
