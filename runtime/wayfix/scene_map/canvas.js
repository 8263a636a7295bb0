"use strict";
// The map itself: where things lie, how they are drawn, and what lies under a point.
// World coordinates are metres from the photo's south-west corner, x to grid east, y to grid north.

const page = document.documentElement;
const byId = id => document.getElementById(id);
const scene = JSON.parse(byId("scene-data").textContent);
const canvas = byId("canvas");
const ground = canvas.getContext("2d");
// Shapes and names lie on a canvas of their own, which is moved as a whole while the map moves.
const overlay = byId("overlay");
const pen = overlay.getContext("2d");

const MAX_LABELS = 120;
const NODES_FROM = 1.5; // pixels per metre
const HALO = "rgba(0,0,0,.65)";
const LANDMARK_COLOR = "#ffd54a", PLACE_COLOR = "#ff7ab8", NODE_COLOR = "#ffffff", CHOSEN_COLOR = "#00e5ff";
const WAY_COLORS = {
  footway: "#4dd2ff", path: "#7be27b", pedestrian: "#c9a0ff", steps: "#ff5a4f", crossing: "#ffffff",
  living_street: "#ffb3e6", residential: "#e8e8d0", service: "#b8b8a8", cycleway: "#5b8cff", track: "#c58b4a",
  platform: "#ff9f40", corridor: "#8fd3c8",
};
const OTHER_WAY_COLOR = "#a9b4c0";

/** The middle in world metres, CSS pixels per metre, and the canvas in the window, CSS pixels. */
const view = { x: scene.size[0] / 2, y: scene.size[1] / 2, scale: 0, left: 0, top: 0, width: 0, height: 0 };
const state = { heightOpacity: 0.8, chosen: null, moving: false };
/** Where the overlay was drawn for, and how long that took, ms. */
const drawn = { x: 0, y: 0, scale: 0, cost: 0 };
const FLUID_MS = 12;
let drawWaiting = false;

/** Where a world point is on the canvas, CSS pixels. */
const toX = x => (x - view.x) * view.scale + view.width / 2;
const toY = y => view.height / 2 - (y - view.y) * view.scale;
/** The world point at a place on the canvas. */
const worldX = px => view.x + (px - view.width / 2) / view.scale;
const worldY = py => view.y - (py - view.height / 2) / view.scale;

// ---- features

/** A feature with its coordinates in metres, its bounds and its area in square metres. */
function compile(raw, layer) {
  const metres = lists => (lists || []).map(list => Float64Array.from(list, v => v / 100));
  const feature = {
    layer, name: raw.name || "", type: raw.type || "", aliases: raw.aliases || [], facts: raw.facts || [],
    rings: metres(raw.rings), lines: metres(raw.lines), points: metres(raw.points),
    bounds: [Infinity, Infinity, -Infinity, -Infinity], area: 0, labelWidth: 0,
  };
  for (const xy of [...feature.rings, ...feature.lines, ...feature.points]) {
    for (let i = 0; i < xy.length; i += 2) {
      feature.bounds[0] = Math.min(feature.bounds[0], xy[i]);
      feature.bounds[1] = Math.min(feature.bounds[1], xy[i + 1]);
      feature.bounds[2] = Math.max(feature.bounds[2], xy[i]);
      feature.bounds[3] = Math.max(feature.bounds[3], xy[i + 1]);
    }
  }
  for (const xy of feature.rings) feature.area += ringArea(xy);
  feature.at = raw.at ? [raw.at[0] / 100, raw.at[1] / 100] : feature.points[0] || feature.lines[0].slice(0, 2);
  return feature;
}

/** Positive where a ring runs against the clock; holes count negative. */
function ringArea(xy) {
  let twice = 0;
  for (let i = 0, j = xy.length - 2; i < xy.length; j = i, i += 2) twice += xy[j] * xy[i + 1] - xy[i] * xy[j + 1];
  return twice / 2;
}

const features = {};
for (const layer of ["landmarks", "ways", "nodes", "places"]) {
  features[layer] = scene[layer].map(raw => compile(raw, layer));
}
/** Large things get their names first. */
const labelled = [...features.landmarks, ...features.places].filter(f => f.name).sort((a, b) => b.area - a.area);
const wayKinds = [...new Set(features.ways.map(way => way.type))].sort();
const colorOfWay = kind => WAY_COLORS[kind] || OTHER_WAY_COLOR;
const waysByKind = wayKinds.map(kind => [kind, features.ways.filter(way => way.type === kind)]);

// ---- layers and their pictures

const layers = [{ key: "photo", title: "Photo", on: true, image: scene.photo, bounds: [0, 0, ...scene.size] }];
for (const height of [...scene.heights].reverse()) layers.push({ on: false, ...height });
if (features.ways.length) layers.push({ key: "ways", title: "Footways", on: true });
if (features.nodes.length) layers.push({ key: "nodes", title: "Barriers, crossings", on: true });
if (features.places.length) layers.push({ key: "places", title: "Places", on: true });
if (features.landmarks.length) layers.push({ key: "landmarks", title: "Landmarks", on: true });
if (labelled.length) layers.push({ key: "names", title: "Names", on: true });

const layerOf = key => layers.find(layer => layer.key === key);
const isOn = key => Boolean(layerOf(key)?.on);

/** Decode a layer's picture at its first use, and draw again when it is there. */
function loadPicture(layer) {
  if (layer.picture || !layer.image) return;
  layer.picture = new Image();
  layer.picture.onload = () => { layer.ready = true; draw(); };
  layer.picture.onerror = () => report("the picture of the layer " + layer.key + " cannot be decoded");
  layer.picture.src = layer.image;
}

// ---- drawing

/** Draw at the next frame, once, however often it is asked for. */
function requestDraw() {
  if (drawWaiting) return;
  drawWaiting = true;
  requestAnimationFrame(() => { drawWaiting = false; draw(); });
}

function draw() {
  if (!view.scale) return;
  const ratio = canvas.width / view.width;
  ground.setTransform(ratio, 0, 0, ratio, 0, 0);
  ground.clearRect(0, 0, view.width, view.height);
  const waiting = layers.filter(layer => layer.on && layer.image && !drawPicture(layer));
  if (state.moving && drawn.cost > FLUID_MS) shiftOverlay();
  else drawOverlay(ratio);
  drawFurniture();
  const [width, height] = scene.size;
  const place = [view.left + toX(0), view.top + toY(height), width * view.scale, height * view.scale];
  page.dataset.photo = place.map(pixels => pixels.toFixed(1)).join(",");
  if (!waiting.length) page.dataset.ready = "true";
}

function drawOverlay(ratio) {
  const started = performance.now();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, view.width, view.height);
  pen.lineJoin = pen.lineCap = "round";
  const seen = [worldX(0), worldY(view.height), worldX(view.width), worldY(0)];
  if (isOn("ways")) drawWays(seen);
  if (isOn("nodes") && view.scale > NODES_FROM) drawDots(features.nodes, seen, NODE_COLOR, 2.5);
  if (isOn("landmarks")) drawLandmarks(seen);
  if (isOn("places")) drawDots(features.places, seen, PLACE_COLOR, 4);
  if (state.chosen) drawChosen(state.chosen);
  if (isOn("names")) drawNames(seen);
  overlay.style.transform = "";
  Object.assign(drawn, { x: view.x, y: view.y, scale: view.scale, cost: performance.now() - started });
  page.dataset.drawMs = drawn.cost.toFixed(1);
}

/** Move and stretch the overlay to where the map is now; it is drawn anew when the map stands still. */
function shiftOverlay() {
  const x = (drawn.x - view.x) * view.scale, y = (view.y - drawn.y) * view.scale;
  overlay.style.transform = `translate(${x}px, ${y}px) scale(${view.scale / drawn.scale})`;
}

/** Whether the picture was there to be drawn. */
function drawPicture(layer) {
  loadPicture(layer);
  if (!layer.ready) return false;
  const [west, south, east, north] = layer.bounds;
  const perPixel = ((east - west) * view.scale) / layer.picture.naturalWidth;
  ground.imageSmoothingEnabled = perPixel < 4;
  ground.imageSmoothingQuality = perPixel < 0.6 ? "medium" : "low";
  ground.globalAlpha = layer.key === "photo" ? 1 : state.heightOpacity;
  ground.drawImage(layer.picture, toX(west), toY(north), (east - west) * view.scale, (north - south) * view.scale);
  ground.globalAlpha = 1;
  return true;
}

const overlaps = (a, b) => a[0] <= b[2] && a[2] >= b[0] && a[1] <= b[3] && a[3] >= b[1];

/** Add a line or ring to the current path; vertices nearer than a pixel to the last one are left out. */
function trace(xy, closed) {
  let lastX = toX(xy[0]), lastY = toY(xy[1]);
  pen.moveTo(lastX, lastY);
  for (let i = 2; i < xy.length; i += 2) {
    const x = toX(xy[i]), y = toY(xy[i + 1]);
    if (i < xy.length - 2 && Math.abs(x - lastX) + Math.abs(y - lastY) < 1) continue;
    pen.lineTo(x, y);
    lastX = x;
    lastY = y;
  }
  if (closed) pen.closePath();
}

/** Stroke the current path twice, so that it shows on bright and on dark ground. */
function strokeWithHalo(color, width) {
  pen.strokeStyle = HALO;
  pen.lineWidth = width * 2 + 0.5;
  pen.stroke();
  pen.strokeStyle = color;
  pen.lineWidth = width;
  pen.stroke();
}

function drawWays(seen) {
  let count = 0;
  const width = Math.min(3, Math.max(1, view.scale * 0.8));
  for (const [kind, ways] of waysByKind) {
    pen.beginPath();
    for (const way of ways) {
      if (!overlaps(way.bounds, seen)) continue;
      for (const xy of way.lines) trace(xy, false);
      count++;
    }
    if (view.scale > 0.8) {
      strokeWithHalo(colorOfWay(kind), width);
    } else {
      pen.strokeStyle = colorOfWay(kind);
      pen.lineWidth = width;
      pen.stroke();
    }
  }
  page.dataset.drawnWays = count;
}

function drawLandmarks(seen) {
  const visible = features.landmarks.filter(mark => overlaps(mark.bounds, seen));
  const width = visible.length > 1000 ? Math.min(1.5, Math.max(0.6, view.scale * 2)) : 1.5;
  // A browser strokes many short paths faster than one long one that crosses itself.
  for (let first = 0; first < visible.length; first += 50) {
    pen.beginPath();
    for (const mark of visible.slice(first, first + 50)) {
      for (const xy of mark.rings) trace(xy, true);
      for (const xy of mark.lines) trace(xy, false);
    }
    strokeWithHalo(LANDMARK_COLOR, width);
  }
  drawDots(visible, seen, LANDMARK_COLOR, 4.5);
  page.dataset.drawnLandmarks = visible.length;
}

/** Dots of at most `largest` pixels radius, smaller where the whole of a large scene is seen. */
function drawDots(things, seen, color, largest) {
  const radius = largest * Math.min(1, Math.max(0.4, view.scale));
  pen.fillStyle = color;
  pen.strokeStyle = HALO;
  pen.lineWidth = 1;
  for (const thing of things) {
    for (const xy of thing.points) {
      if (xy[0] < seen[0] || xy[0] > seen[2] || xy[1] < seen[1] || xy[1] > seen[3]) continue;
      pen.beginPath();
      pen.arc(toX(xy[0]), toY(xy[1]), radius, 0, 2 * Math.PI);
      pen.fill();
      pen.stroke();
    }
  }
}

function drawChosen(feature) {
  pen.beginPath();
  for (const xy of feature.rings) trace(xy, true);
  pen.fillStyle = "rgba(0,229,255,.22)";
  pen.fill();
  for (const xy of feature.lines) trace(xy, false);
  for (const xy of feature.points) {
    pen.moveTo(toX(xy[0]) + 8, toY(xy[1]));
    pen.arc(toX(xy[0]), toY(xy[1]), 8, 0, 2 * Math.PI);
  }
  strokeWithHalo(CHOSEN_COLOR, 3);
}

/** Write names where they do not cover each other: the chosen one, then from large to small. */
function drawNames(seen) {
  const taken = [];
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  if (state.chosen?.name) drawName(state.chosen, taken);
  for (const feature of labelled) {
    if (taken.length >= MAX_LABELS) break;
    if (feature === state.chosen || !isOn(feature.layer)) continue;
    const [x, y] = feature.at;
    if (x >= seen[0] && x <= seen[2] && y >= seen[1] && y <= seen[3]) drawName(feature, taken);
  }
  page.dataset.drawnNames = taken.length;
}

function drawName(feature, taken) {
  const text = feature.name.length > 40 ? [...feature.name].slice(0, 39).join("") + "…" : feature.name;
  feature.labelWidth ||= pen.measureText(text).width;
  const x = toX(feature.at[0]), y = toY(feature.at[1]) - (feature.points.length ? 14 : 0);
  const half = feature.labelWidth / 2 + 3;
  const box = [x - half, y - 9, x + half, y + 9];
  if (taken.some(other => overlaps(other, box))) return;
  taken.push(box);
  pen.lineWidth = 3;
  pen.strokeStyle = "rgba(0,0,0,.8)";
  pen.strokeText(text, x, y);
  pen.fillStyle = feature === state.chosen ? CHOSEN_COLOR : "#fff";
  pen.fillText(text, x, y);
}

/** Cross of the keyboard's aim, and the scale bar. The bar is in metres on the ground, not of the grid. */
function drawFurniture() {
  if (canvas.matches(":focus-visible")) {
    const x = Math.round(view.width / 2), y = Math.round(view.height / 2);
    for (const [color, width] of [[HALO, 5], ["#fff", 2]]) {
      ground.fillStyle = color;
      ground.fillRect(x - 10, y - width / 2, 20, width);
      ground.fillRect(x - width / 2, y - 10, width, 20);
    }
  }
  const perMetre = view.scale * scene.pointScale;
  const most = Math.min(140, view.width * 0.35) / perMetre;
  const power = 10 ** Math.floor(Math.log10(most));
  const length = [5, 2, 1].map(step => step * power).find(candidate => candidate <= most);
  byId("scale-bar").style.width = length * perMetre + "px";
  byId("scale-text").textContent = length >= 1000 ? length / 1000 + " km" : length >= 1 ? length + " m" : Math.round(length * 100) + " cm";
}

// ---- what lies under a point

/** The feature at a world point within `reach` metres: points first, then lines, then the smallest area; or null. */
function featureAt(x, y, reach) {
  const near = [x - reach, y - reach, x + reach, y + reach];
  let best = null, bestRank = Infinity;
  for (const key of ["places", "landmarks", "nodes", "ways"]) {
    if (!isOn(key) || (key === "nodes" && view.scale <= NODES_FROM)) continue;
    for (const feature of features[key]) {
      if (!overlaps(feature.bounds, near)) continue;
      const rank = rankAt(feature, x, y, reach);
      if (rank < bestRank) [best, bestRank] = [feature, rank];
    }
  }
  return best;
}

/** Less is nearer: 0..1 at a point, 1..2 at a line, from 2 up inside an area, Infinity elsewhere. */
function rankAt(feature, x, y, reach) {
  for (const [px, py] of feature.points) {
    const distance = Math.hypot(px - x, py - y);
    if (distance <= reach) return distance / reach;
  }
  for (const xy of feature.lines) {
    const distance = distanceToLine(xy, x, y);
    if (distance <= reach) return 1 + distance / reach;
  }
  const inside = feature.rings.reduce((odd, xy) => odd !== contains(xy, x, y), false);
  return inside ? 2 + feature.area : Infinity;
}

function distanceToLine(xy, x, y) {
  let best = Infinity;
  for (let i = 2; i < xy.length; i += 2) {
    const dx = xy[i] - xy[i - 2], dy = xy[i + 1] - xy[i - 1];
    const along = ((x - xy[i - 2]) * dx + (y - xy[i - 1]) * dy) / (dx * dx + dy * dy || 1);
    const t = Math.min(1, Math.max(0, along));
    best = Math.min(best, Math.hypot(xy[i - 2] + t * dx - x, xy[i - 1] + t * dy - y));
  }
  return best;
}

function contains(xy, x, y) {
  let odd = false;
  for (let i = 0, j = xy.length - 2; i < xy.length; j = i, i += 2) {
    const crosses = xy[i + 1] > y !== xy[j + 1] > y;
    if (crosses && x < ((xy[j] - xy[i]) * (y - xy[i + 1])) / (xy[j + 1] - xy[i + 1]) + xy[i]) odd = !odd;
  }
  return odd;
}

// ---- heights and degrees at a point

/** A height layer's height in metres at a world point, or null. */
function heightAt(layer, x, y) {
  const { columns, rows, low, step, cells } = layer.probe;
  const [west, south, east, north] = layer.bounds;
  const column = Math.floor(((x - west) / (east - west)) * columns), row = Math.floor(((north - y) / (north - south)) * rows);
  if (column < 0 || column >= columns || row < 0 || row >= rows) return null;
  layer.bytes ||= atob(cells);
  const at = 2 * (row * columns + column);
  const value = layer.bytes.charCodeAt(at) + 256 * layer.bytes.charCodeAt(at + 1);
  return value ? low + (value - 1) * step : null;
}

/** Longitude and latitude in degrees, interpolated between the corners. */
function lonLatAt(x, y) {
  const u = x / scene.size[0], v = y / scene.size[1];
  const weights = [(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v];
  const mix = values => weights.reduce((sum, weight, i) => sum + weight * values[i], 0);
  return [((mix(scene.lonlat.lon) + 540) % 360) - 180, mix(scene.lonlat.lat)];
}
