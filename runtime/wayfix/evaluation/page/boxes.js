"use strict";
// Boxes of the world over the picture of a view, which is north up: x and y scale, nothing turns.

const RING_BELOW = 22; // A target or answer smaller than this many pixels is hard to see: it gets a ring.
const RINGS = { landmark: 13, target: 15, answer: 19 };
const LABEL_HEIGHT = 17, LABEL_CHARS = 28;
const ruler = document.createElement("canvas").getContext("2d");

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Pixels of a world box in a view that is shown `width` by `height` pixels large. */
function placed(box, region, width, height) {
  const across = width / (region[2] - region[0]), down = height / (region[3] - region[1]);
  return {
    x: (box[0] - region[0]) * across, y: (region[3] - box[3]) * down,
    width: (box[2] - box[0]) * across, height: (box[3] - box[1]) * down,
  };
}

/** World box of a box in units of a view, 0 to 1000, y downwards. */
function worldBox([x0, y0, x1, y1], [west, south, east, north]) {
  const across = (east - west) / 1000, down = (north - south) / 1000;
  return [west + x0 * across, north - y1 * down, west + x1 * across, north - y0 * down];
}

/** Everything that can be drawn over the views of a search, lowest first. */
function boxesOf(row, trace) {
  const regions = new Map(trace.views.map(view => [view.id, view.region]));
  const crops = trace.views.filter(view => view.id !== "v0").map(view => ({ kind: "crop", of: view.id, label: view.id, box: view.region }));
  const boxes = [...crops, ...landmarkBoxes(trace, regions)];
  if (row.target) boxes.push({ kind: "target", label: "target", box: row.target });
  if (row.answer) boxes.push({ kind: row.partial ? "answer partial" : "answer", label: row.partial ? "best region" : "answer", box: row.answer });
  return boxes;
}

function landmarkBoxes(trace, regions) {
  const boxes = [];
  for (const turn of trace.turns) {
    if (turn.action !== "landmark_query" || !turn.result) continue;
    const region = regions.get(turn.result.view_id);
    for (const found of turn.result.candidates || [turn.result]) {
      if (!region || !Array.isArray(found.box)) continue;
      const box = worldBox(found.box, region), label = String(found.name);
      const known = boxes.some(other => other.label === label && other.box.every((value, i) => Math.abs(value - box[i]) < 1));
      if (!known) boxes.push({ kind: "landmark", label, box });
    }
  }
  return boxes;
}

/** Draw what lies in a view over its picture, anew for the size it now has. */
function drawBoxes(svg, view, boxes) {
  const { width, height } = svg.getBoundingClientRect();
  if (!width || !height) return;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const drawn = [];
  for (const entry of boxes) {
    const at = placed(entry.box, view.region, width, height);
    const seen = at.x < width && at.y < height && at.x + at.width > 0 && at.y + at.height > 0;
    const around = at.x <= 0 && at.y <= 0 && at.x + at.width >= width && at.y + at.height >= height;
    if (entry.of === view.id || !seen || (around && entry.kind === "crop")) continue;
    drawn.push({ ...entry, ...drawBox(svg, entry, at, width, height) });
  }
  labelBoxes(drawn, width, height);
}

/** The group that holds a box, and the part of the picture that it marks. */
function drawBox(svg, entry, at, width, height) {
  const group = shape("g", { class: entry.kind }), title = shape("title", {});
  title.textContent = `${entry.label}: ${(entry.box[2] - entry.box[0]).toFixed(1)} × ${(entry.box[3] - entry.box[1]).toFixed(1)} m`;
  group.append(title, shape("rect", { class: "halo", ...at }), shape("rect", { class: "shape", ...at }));
  const radius = RINGS[entry.kind.split(" ")[0]];
  let [left, top, right, bottom] = [at.x, at.y, at.x + at.width, at.y + at.height];
  if (radius && Math.max(at.width, at.height) < RING_BELOW) {
    const cx = at.x + at.width / 2, cy = at.y + at.height / 2;
    group.append(shape("circle", { class: "halo", cx, cy, r: radius }), shape("circle", { class: "shape", cx, cy, r: radius }));
    [left, top, right, bottom] = [cx - radius, cy - radius, cx + radius, cy + radius];
  }
  svg.append(group);
  [left, right] = [left, right].map(x => Math.min(width, Math.max(0, x)));
  [top, bottom] = [top, bottom].map(y => Math.min(height, Math.max(0, y)));
  return { group, left, top, right, bottom };
}

// ---- labels: the target's and the answer's first, none over another

function labelBoxes(drawn, width, height) {
  const placedLabels = [];
  const kept = drawn.filter(entry => entry.kind.startsWith("answer") || entry.kind === "target");
  for (const entry of [...drawn].reverse()) {
    const signs = Array.from(entry.label);
    const text = signs.length > LABEL_CHARS ? signs.slice(0, LABEL_CHARS - 1).join("") + "…" : entry.label;
    ruler.font = "600 12px system-ui, sans-serif";
    const size = Math.min(width, ruler.measureText(text).width + 8);
    const free = spot => !placedLabels.some(other => overlap(spot, other));
    const clear = spot => free(spot) && !kept.some(other => small(other) && overlap(spot, other));
    const spots = spotsAround(entry, size, width, height);
    const spot = spots.find(clear) || spots.find(free);
    if (!spot) continue; // Too crowded: its name is still told where the pointer rests.
    placedLabels.push(spot);
    const label = shape("g", { class: "label" }), words = shape("text", { x: spot.left + 4, y: spot.top + 12.5 });
    words.textContent = text;
    label.append(shape("rect", { x: spot.left, y: spot.top, width: size, height: LABEL_HEIGHT, rx: 3 }), words);
    entry.group.append(label);
  }
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const small = entry => entry.right - entry.left < 90 && entry.bottom - entry.top < 90;

/** Where a label may stand, the best first: at the corners of what it names, then further and further away. */
function spotsAround(entry, size, width, height) {
  const spots = [];
  for (let away = 0; away <= 6; away++) {
    const step = away * LABEL_HEIGHT;
    const above = entry.top - LABEL_HEIGHT - 2 - step, below = entry.bottom + 2 + step;
    for (const top of [above, below]) for (const left of [entry.left, entry.right - size]) spots.push([left, top]);
    for (const left of [entry.right + 2, entry.left - size - 2]) spots.push([left, entry.top + step]);
    spots.push([entry.left + 2, entry.top + 2 + step], [entry.right - size - 2, entry.bottom - LABEL_HEIGHT - 2 - step]);
  }
  return spots.map(([x, y]) => {
    const left = Math.min(Math.max(0, x), width - size), top = Math.min(Math.max(0, y), height - LABEL_HEIGHT);
    return { left, top, right: left + size, bottom: top + LABEL_HEIGHT };
  });
}
