"""The error root and every named cause. A code is the same in Python, in service replies and in ROS results.

A message says what was wrong, what was expected, and what to do. `docs/errors.md` lists every code.
"""

from __future__ import annotations


class WayfixError(Exception):
    """Root of all errors Wayfix raises on purpose; `code` is stable across releases."""

    code = "internal_error"


class InvalidQuery(WayfixError):
    """The sentence is empty, too long, or not text."""

    code = "invalid_query"


class InvalidBudget(WayfixError):
    """The time allowed is not a positive, finite number of seconds."""

    code = "invalid_budget"


class InvalidOption(WayfixError):
    """A command-line or configuration value is outside what is accepted."""

    code = "invalid_option"


# ---- a turn of an episode: these cost the policy a turn, and their message is what it reads next


class ToolError(WayfixError):
    """A turn that could not be carried out; the message is meant for the policy that made it."""

    code = "tool_error"


class MalformedAction(ToolError):
    """The assistant's text holds no action of the protocol, or more than one."""

    code = "malformed_action"


class UnknownTool(ToolError):
    """The tool called does not exist or is not offered for this scene."""

    code = "unknown_tool"


class InvalidArguments(ToolError):
    """A tool call's arguments are missing, unknown, or of the wrong type."""

    code = "invalid_arguments"


class InvalidBox(ToolError):
    """A box is not four integers 0 to 1000 with x_min < x_max and y_min < y_max."""

    code = "invalid_box"


class UnknownView(ToolError):
    """A view id that this episode never returned, or one that cannot be used for this."""

    code = "unknown_view"


class WrongStep(ToolError):
    """In a fixed workflow, an action other than the next step."""

    code = "wrong_step"


# ---- how an episode can end without an answer


class DeadlineExceeded(WayfixError):
    """The budget ended before a final answer."""

    code = "deadline_exceeded"


class TurnsExhausted(WayfixError):
    """The policy used all its turns without a final answer."""

    code = "turns_exhausted"


class Cancelled(WayfixError):
    """The request was cancelled by its sender."""

    code = "cancelled"


class PolicyFailed(WayfixError):
    """The policy raised instead of answering."""

    code = "policy_failed"


class EndpointUnreachable(PolicyFailed):
    """No connection to the remote policy's endpoint could be made."""

    code = "endpoint_unreachable"


class EndpointBusy(PolicyFailed):
    """The endpoint takes no further requests now (429)."""

    code = "endpoint_busy"


class EndpointRefused(PolicyFailed):
    """The endpoint does not take this request: wrong key, model, URL, or a feature it lacks (other 4xx)."""

    code = "endpoint_refused"


class EndpointFailed(PolicyFailed):
    """The endpoint failed (5xx), was too slow, broke off, or sent what is no reply of the protocol."""

    code = "endpoint_failed"


class UnreadableTrace(WayfixError):
    """A trace file is missing, damaged, or of another version."""

    code = "unreadable_trace"


# ---- evaluation


class EvaluationError(WayfixError):
    """Root of what can be wrong with an evaluation's inputs."""

    code = "evaluation_error"


class UnreadableQueries(EvaluationError):
    """A file of queries is missing, damaged, or lacks what every query needs."""

    code = "unreadable_queries"


class UnreadableReport(EvaluationError):
    """A file is no report of `wayfix eval`, or of a newer version."""

    code = "unreadable_report"


class SuiteChanged(EvaluationError):
    """A frozen suite came out different here: its figures would not be comparable."""

    code = "suite_changed"


class NotComparable(EvaluationError):
    """Two reports share no query, or are of different suites."""

    code = "not_comparable"


# ---- a scene on disk


class SceneError(WayfixError):
    """Root of what can be wrong with a scene folder."""

    code = "scene_error"


class SceneNotFound(SceneError):
    """There is no scene at this path."""

    code = "scene_not_found"


class SceneExists(SceneError):
    """The target folder already holds something; nothing was touched."""

    code = "scene_exists"


class SceneBusy(SceneError):
    """Another process is importing into the same folder."""

    code = "scene_busy"


class SceneTooNew(SceneError):
    """The scene was written by a newer Wayfix, in a format this one does not know."""

    code = "scene_too_new"


class SceneCorrupt(SceneError):
    """A checksum does not match: the file changed after it was written."""

    code = "scene_corrupt"


class StorageFull(SceneError):
    """No space was left on the disk; what had been written was removed."""

    code = "storage_full"


class StorageFailed(SceneError):
    """Reading or writing failed for a reason other than space."""

    code = "storage_failed"


# ---- sources brought to an import


class SourceError(WayfixError):
    """Root of what can be wrong with an input file of an import."""

    code = "source_error"


class UnreadableSource(SourceError):
    """A file is missing, or its format is not one that is read."""

    code = "unreadable_source"


class MissingTransform(SourceError):
    """A raster has no geotransform and no world file."""

    code = "missing_transform"


class MissingCrs(SourceError):
    """A source does not say which CRS it is in, and none was given."""

    code = "missing_crs"


class InvalidCrs(SourceError):
    """A CRS cannot be read, is of a kind that is not supported, or contradicts the file's own."""

    code = "invalid_crs"


class GeographicCrs(SourceError):
    """A raster in degrees cannot be a scene, whose CRS is projected and in metres."""

    code = "geographic_crs"


class InvalidHeights(SourceError):
    """Heights are not finite numbers, or nothing tells their unit."""

    code = "invalid_heights"


class InvalidPoints(SourceError):
    """A point cloud holds coordinates or colours that cannot be used."""

    code = "invalid_points"


class InvalidMap(SourceError):
    """An OpenStreetMap file is empty or is none."""

    code = "invalid_map"


class InvalidLandmarks(SourceError):
    """A landmark file lacks names or usable geometries."""

    code = "invalid_landmarks"


class NoOverlap(SourceError):
    """Two sources of one import do not cover a common place."""

    code = "no_overlap"


class ConversionUnavailable(SourceError):
    """No operation of known accuracy leads from one CRS or datum to another."""

    code = "conversion_unavailable"


# ---- engines and the checkpoints they are made of


class EngineError(WayfixError):
    """Root of what can be wrong with an engine folder."""

    code = "engine_error"


class EngineNotFound(EngineError):
    """There is no engine at this path."""

    code = "engine_not_found"


class EngineTooNew(EngineError):
    """The engine was written by a newer Wayfix, in a format this one does not know."""

    code = "engine_too_new"


class EngineCorrupt(EngineError):
    """A file of the engine is missing, or is not the one that was written."""

    code = "engine_corrupt"


class EngineMismatch(EngineError):
    """The engine's parts do not belong together, or it was made for other hardware."""

    code = "engine_mismatch"


class EngineUnsupported(EngineError):
    """What the engine needs to run, a provider or a newer onnxruntime, is not on this machine."""

    code = "engine_unsupported"


class EngineOutOfMemory(EngineError):
    """The engine, or one episode on it, does not fit into the memory allowed."""

    code = "engine_out_of_memory"


class PromptTooLong(PolicyFailed):
    """An episode's prompt is longer than the model or the engine's memory takes."""

    code = "prompt_too_long"


class ExportError(WayfixError):
    """Root of what can stop an export."""

    code = "export_error"


class UnreadableCheckpoint(ExportError):
    """A checkpoint folder is missing, incomplete or damaged."""

    code = "unreadable_checkpoint"


class UnsupportedModel(ExportError):
    """The checkpoint is of a kind, or has a feature, that cannot be exported."""

    code = "unsupported_model"


class ParityFailed(ExportError):
    """The engine does not say what its checkpoint says; nothing was written."""

    code = "parity_failed"


class EngineNotBuilt(ExportError):
    """TensorRT could not read a graph or build it."""

    code = "engine_not_built"


class TrainingError(WayfixError):
    """Root of what can stop training."""

    code = "training_error"


class RewardNotFinite(TrainingError):
    """A trajectory's reward is not a number."""

    code = "reward_not_finite"


class CheckpointNotSaved(TrainingError):
    """A checkpoint could not be written; those before it are whole."""

    code = "checkpoint_not_saved"
