"use strict";
// One opened query: its facts, the pictures of its search, and its turns. Texts are data: they enter the page as text only.

const byId = id => document.getElementById(id);

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const known = value => value !== null && value !== undefined;
const percent = value => (known(value) ? `${(100 * value).toFixed(1)} %` : "-");
const milliseconds = value => `${value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 })} ms`;
const counted = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** What the page keeps of a query's search; null where it keeps none. */
function searchOf(row) {
  const kept = byId(`search-${row.number}`);
  return kept ? JSON.parse(kept.textContent) : null;
}

/** The opened query as an element; `picturesDrawn` must be called once it is in the page. */
function openedQuery(row, buttons) {
  const opened = element("div", "", { class: "opened", role: "region", "aria-label": "The opened query" });
  const search = searchOf(row);
  const tools = element("div", "", { class: "tools" });
  tools.append(...buttons);
  opened.append(tools, element("h3", row.query, { dir: "auto" }), factsOf(row));
  if (search) {
    const views = element("div", "", { class: "views" });
    const boxes = boxesOf(row, search.trace);
    for (const view of search.trace.views) views.append(viewFigure(view, search, boxes));
    opened.append(legendOf(boxes, views), views, turnsOf(search.trace));
  } else {
    opened.append(element("p", "The page keeps no pictures and turns of this search.", { class: "note" }));
  }
  return opened;
}

// ---- facts

function factsOf(row) {
  const facts = {
    id: row.id, scene: row.scene, kind: row.kind, landmarks: row.condition,
    landmark: landmarkOf(row),
    "same class within 50 m": row.distractors_50m,
    ended: row.code === "ok" ? null : row.code + (row.partial ? ", with a best region" : ""),
    confidence: known(row.confidence) ? row.confidence.toFixed(2) : null,
    rank: rankOf(row),
    "2D IoU": known(row.iou_2d) ? percent(row.iou_2d) : null,
    "3D IoU": known(row.iou_3d) ? percent(row.iou_3d) : null,
    "point F1": known(row.point_f1) ? percent(row.point_f1) : null,
    overlaps: known(row.overlapped) ? `${counted(row.overlapped, "candidate")}, ${row.overlapped_well} with IoU ≥ 0.25` : null,
    "area of the answer": known(row.area_ratio) ? `${row.area_ratio.toFixed(2)} times the target's` : null,
    "region reached": known(row.region_reached) ? (row.region_reached ? "yes" : "no") : null,
    target: row.target ? boxText(row.target) : "none in the scene",
    answer: row.answer ? boxText(row.answer) : "none",
    calls: Object.entries(row.tool_calls).map(([name, n]) => `${n} ${name}`).join(", ") || "none",
    "invalid calls": row.invalid_calls || null,
    tokens: known(row.prompt_tokens) ? `${row.prompt_tokens.toLocaleString("en")} read, ${(row.completion_tokens || 0).toLocaleString("en")} written` : null,
    time: `${milliseconds(row.total_ms)}, policy ${milliseconds(row.policy_ms)}`,
  };
  const list = element("dl");
  for (const [name, value] of Object.entries(facts)) {
    if (!known(value)) continue;
    const fact = element("div");
    fact.append(element("dt", name), element("dd", value, { dir: "auto" }));
    list.append(fact);
  }
  return list;
}

function landmarkOf(row) {
  if (!known(row.landmark)) return null;
  return known(row.landmark_distance_m) ? `${row.landmark}, ${row.landmark_distance_m.toFixed(0)} m from the target` : row.landmark;
}

function rankOf(row) {
  if (!known(row.rank)) return null;
  return `${row.rank} of ${row.candidates} (of those overlapped ${row.rank_positive ?? "-"}, by CIoU ${row.rank_ciou ?? "-"})`;
}

function boxText([west, south, east, north, low, high]) {
  const heights = known(low) && known(high) ? `, heights ${low.toFixed(1)} to ${high.toFixed(1)} m` : "";
  return `${(east - west).toFixed(1)} × ${(north - south).toFixed(1)} m at E ${west.toFixed(1)}, N ${south.toFixed(1)}${heights}`;
}

// ---- pictures

const LEGEND = [
  ["target", "target"], ["answer", "answer"], ["crop", "regions looked at, by view"], ["landmark", "landmarks found"],
];

/** What the colours mean; each can be hidden to see what is under it. */
function legendOf(boxes, views) {
  const legend = element("fieldset", "", { class: "legend" });
  legend.append(element("legend", "Boxes shown", { class: "unseen" }));
  for (const [kind, title] of LEGEND) {
    const first = boxes.find(entry => entry.kind.startsWith(kind));
    if (!first) continue;
    const partial = first.kind.endsWith("partial"), label = element("label"), tick = element("input", "", { type: "checkbox" });
    tick.checked = true;
    tick.addEventListener("change", () => views.classList.toggle(`no-${kind}`, !tick.checked));
    label.append(tick, element("i", "", { class: partial ? "partial" : kind }), partial ? "best region (partial answer)" : title);
    legend.append(label);
  }
  return legend;
}

function viewFigure(view, search, boxes) {
  const figure = element("figure", "", { class: "view", "data-view": view.id });
  const frame = element("div", "", { class: "frame" }), [width, height] = view.size_px;
  const number = new Map(Object.entries(search.pictures)).get(view.id);
  const picture = element("img", "", { alt: captionOf(view, search.trace), width, height });
  if (known(number)) picture.src = "data:image/jpeg;base64," + JSON.parse(byId(`picture-${number}`).textContent);
  frame.append(picture);
  if (!view.direction) {
    const overlay = shape("svg", { "aria-hidden": "true" });
    frame.append(overlay);
    new ResizeObserver(() => drawBoxes(overlay, view, boxes)).observe(frame);
  }
  const caption = element("figcaption"), larger = element("button", "larger", { type: "button", "aria-pressed": "false" });
  larger.addEventListener("click", () => larger.setAttribute("aria-pressed", figure.classList.toggle("large")));
  caption.append(element("span", captionOf(view, search.trace)), larger);
  figure.append(frame, caption);
  return figure;
}

function captionOf(view, trace) {
  const [west, south, east, north] = view.region;
  const size = `${(east - west).toFixed(0)} × ${(north - south).toFixed(0)} m`;
  if (view.id === "v0") return `v0 · the whole scene · ${size}`;
  const turn = trace.turns.findIndex(entry => entry.view_id === view.id) + 1;
  return `${view.id} · turn ${turn} · ${view.direction ? `seen from the ${view.direction}` : "zoom"} · ${size}`;
}

// ---- turns

function turnsOf(trace) {
  const list = element("ol", "", { class: "turns" });
  trace.turns.forEach((turn, i) => list.append(turnItem(turn, i + 1)));
  const end = element("li");
  end.append(element("strong", `End: ${trace.code}`), element("pre", trace.message, { dir: "auto" }));
  if (trace.code !== "ok" && trace.code !== "not_found") end.className = "invalid";
  list.append(end);
  return list;
}

function turnItem(turn, number) {
  const item = element("li", "", { class: turn.action === "invalid" ? "invalid" : "turn" }), top = element("header");
  top.append(element("strong", `${number}. ${turn.action}${turn.view_id ? ` → ${turn.view_id}` : ""}`));
  top.append(element("span", `policy ${milliseconds(turn.policy_ms)}, tool ${milliseconds(turn.tool_ms)}`));
  if (known(turn.confidence)) top.append(element("span", `confidence ${turn.confidence.toFixed(2)}`));
  if (known(turn.prompt_tokens)) top.append(element("span", `${turn.prompt_tokens} tokens read, ${turn.completion_tokens ?? "-"} written`));
  item.append(top, element("pre", turn.text, { dir: "auto" }));
  if (turn.alternatives.length) {
    const others = turn.alternatives.map(other => `${other.view_id} [${other.box.join(", ")}] ${other.confidence.toFixed(2)}`);
    item.append(folded("alternatives", others.join("\n")));
  }
  if (turn.result && turn.result.error) {
    item.append(element("p", `${turn.result.error.code}: ${turn.result.error.message}`, { class: "error", dir: "auto" }));
  } else if (turn.result) {
    const status = turn.result.status ? `: ${turn.result.status}${turn.result.name ? `, ${turn.result.name}` : ""}` : "";
    item.append(folded(`result${status}`, JSON.stringify(turn.result)));
  }
  return item;
}

function folded(title, text) {
  const details = element("details");
  details.append(element("summary", title, { dir: "auto" }), element("pre", text, { dir: "auto" }));
  return details;
}
