"""The three tools as the policy sees them (Urbex, Table 5): names, arguments, and what each is for."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wayfix.errors import InvalidArguments, UnknownTool
from wayfix.geo.boxes import UnitBox, parse_unit_box

ViewId = Annotated[str, Field(min_length=1, max_length=16, description="id of a view of this episode, such as v0")]
_BOX = "[x_min, y_min, x_max, y_max] in the source view, integers 0 to 1000, x right, y down"
RawBox = Annotated[list[int], Field(min_length=4, max_length=4)]
Direction = Literal["north", "south", "east", "west"]


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LandmarkQuery(_Arguments):
    """Find a named building, road or place and where it lies in a view. Start here if the query has a name."""

    landmark_name: Annotated[str, Field(min_length=1, max_length=200, description="the name as the query gives it")]
    source_view_id: ViewId
    landmark_type: Annotated[
        str | None, Field(max_length=50, description="only to tell apart equal names, such as road or school")
    ] = None


class ZoomIn(_Arguments):
    """Cut a region out of the full-resolution map. The result is a new view in which boxes can be given."""

    source_view_id: ViewId
    crop_box: Annotated[RawBox, Field(description=_BOX)]
    scale: Annotated[float | None, Field(ge=0.25, le=2.0, description="size of the image, 1 is the usual one")] = None

    @property
    def box(self) -> UnitBox:
        """The checked crop box."""
        return parse_unit_box(self.crop_box)


class ObliqueRender(_Arguments):
    """Look at a candidate from the side, to check height, shape and facade. No boxes can be given in the result."""

    source_view_id: ViewId
    candidate_box: Annotated[RawBox, Field(description=_BOX)]
    direction: Annotated[Direction, Field(description="where the camera stands; north looks south")]
    margin: Annotated[
        float | None, Field(ge=0.0, le=4.0, description="ground around the box, in box sizes; 0.5 is the usual one")
    ] = None

    @property
    def box(self) -> UnitBox:
        """The checked candidate box."""
        return parse_unit_box(self.candidate_box)


ToolCall = LandmarkQuery | ZoomIn | ObliqueRender

TOOLS: dict[str, type[LandmarkQuery] | type[ZoomIn] | type[ObliqueRender]] = {
    "landmark_query": LandmarkQuery,
    "zoom_in": ZoomIn,
    "oblique_render": ObliqueRender,
}


def parse_call(name: str, arguments: object) -> ToolCall:
    """Check a tool's name and arguments; UnknownTool, InvalidArguments or InvalidBox tells the policy what to mend."""
    model = TOOLS.get(name)
    if model is None:
        raise UnknownTool(f"there is no tool {name[:40]!r}; the tools are {', '.join(TOOLS)}")
    if not isinstance(arguments, dict):
        raise InvalidArguments(f"arguments of {name} must be a JSON object, got {type(arguments).__name__}")
    for field in ("crop_box", "candidate_box"):
        if field in model.model_fields and field in arguments:
            arguments = {**arguments, field: list(parse_unit_box(arguments[field]))}
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(p) for p in e['loc']) or 'arguments'}: {e['msg']}" for e in error.errors()[:4]
        )
        raise InvalidArguments(f"{name}: {problems}") from error


def tool_name(call: ToolCall) -> str:
    """The name a call goes by."""
    return next(name for name, model in TOOLS.items() if isinstance(call, model))


@cache  # pydantic takes milliseconds, and every prompt lists the tools
def tool_schema(name: str) -> dict[str, Any]:
    """A tool in the form chat templates and OpenAI-compatible servers take; not to be changed."""
    model = TOOLS[name]
    schema = model.model_json_schema()
    properties = {key: _plain(value) for key, value in schema["properties"].items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": (model.__doc__ or "").strip(),
            "parameters": {"type": "object", "properties": properties, "required": schema["required"]},
        },
    }


def _plain(field: dict[str, Any]) -> dict[str, Any]:
    """Drop what a model does not need: pydantic's titles, and null as an alternative for what may be left out."""
    kept = {key: value for key, value in field.items() if key not in ("title", "default", "anyOf")}
    for option in field.get("anyOf", ()):
        if option.get("type") != "null":
            kept.update(option)
    return kept
