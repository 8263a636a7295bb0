"use strict";
// What people read and choose: facts, layers, search, selection. Names are data: they enter the page as text only.

const LISTED = 100;

function element(tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// ---- reading

/** Name, type, other names and facts of a feature as elements. */
function describe(feature) {
  const type = feature.type.replaceAll("_", " ");
  const title = element("strong", feature.name || type || "unnamed", { dir: "auto" });
  const parts = [title];
  if (feature.name && type) parts.push(element("span", type, { dir: "auto" }));
  if (feature.aliases.length) {
    const also = element("span", "also: ");
    feature.aliases.forEach((alias, i) => also.append(i ? ", " : "", element("bdi", alias)));
    parts.push(also);
  }
  if (feature.facts.length) parts.push(element("span", feature.facts.join(" · "), { dir: "auto" }));
  return parts;
}

function choose(feature) {
  state.chosen = feature;
  const place = byId("selection");
  place.hidden = !feature;
  if (feature) {
    const close = element("button", "×", { type: "button", "aria-label": "End the selection" });
    close.addEventListener("click", () => choose(null));
    place.replaceChildren(close, ...describe(feature), element("span", sizeOf(feature)));
    page.dataset.selected = feature.name;
  } else {
    place.replaceChildren();
    delete page.dataset.selected;
  }
  requestDraw();
}

/** How large a feature is, in metres of the scene's CRS. */
function sizeOf(feature) {
  const [west, south, east, north] = feature.bounds;
  const where = `${feature.points.length ? "at" : "around"} ${coordinates(...feature.at)}`;
  if (feature.points.length) return where;
  return `${(east - west).toFixed(1)} × ${(north - south).toFixed(1)} m (east × north), ${where}`;
}

const coordinates = (x, y) => `E ${(scene.corner[0] + x).toFixed(2)}, N ${(scene.corner[1] + y).toFixed(2)} m`;

function showReadout() {
  const at = hovered || { x: view.width / 2, y: view.height / 2 };
  const x = worldX(at.x), y = worldY(at.y), [lon, lat] = lonLatAt(x, y);
  const heights = scene.heights.map(({ key }) => {
    const height = heightAt(layerOf(key), x, y);
    return `${key.toUpperCase()} ${height === null ? "unknown" : "≈ " + height.toFixed(1) + " m"}`;
  });
  const lines = [
    element("span", hovered ? "At the cursor" : "In the middle of the map"),
    element("b", coordinates(x, y)),
    element("b", `≈ ${lat.toFixed(6)}, ${lon.toFixed(6)} (lat, lon)`),
  ];
  if (heights.length) lines.push(element("b", heights.join(", ")));
  byId("readout").replaceChildren(...lines);
}

function showAbout() {
  const size = scene.size.map(metres => metres.toFixed(1)).join(" × ");
  const error = scene.lonlat.error;
  const turn = Math.abs(scene.convergence).toFixed(2) + "°";
  const side = scene.convergence > 0 ? "left" : "right";
  const facts = {
    Revision: `${scene.revision}, imported ${scene.created}`,
    CRS: scene.crs ? `${scene.crs} (${scene.crsName})` : scene.crsName,
    "Vertical datum": scene.verticalDatum,
    Surveyed: scene.surveyDate || "at an unknown date",
    Photo: `${size} m at ${+scene.gsd.toPrecision(4)} m per pixel; this page may hold it coarser`,
    "To WGS84": scene.accuracy === null ? "unknown accuracy" : scene.accuracy ? `within ${+scene.accuracy.toPrecision(3)} m` : "no change of datum",
    "Degrees shown": `approximate: interpolated between the corners, up to ${error < 0.01 ? "0.01" : error.toPrecision(2)} m off`,
    "True north": `${turn} to the ${side} of up, which is grid north`,
    Attribution: scene.attribution.join("; ") || "none given",
  };
  byId("scene-id").textContent = scene.id;
  byId("headline").textContent = `revision ${scene.revision} · ${facts.CRS} · surveyed ${scene.surveyDate || "at an unknown date"}`;
  for (const [name, value] of Object.entries(facts)) {
    const row = element("div");
    row.append(element("dt", name), element("dd", value, { dir: "auto" }));
    byId("facts").append(row);
  }
  byId("about").open = window.innerWidth > 760;
  byId("credit").textContent = scene.attribution.join("; ");
  byId("true-north").setAttribute("transform", `rotate(${-scene.convergence})`);
  byId("north-text").textContent = `grid north; true ${turn} ${side}`;
}

// ---- layers

function listLayers() {
  for (const layer of [...layers].reverse()) {
    const label = element("label"), box = element("input", "", { type: "checkbox" });
    layer.box = box;
    box.checked = layer.on;
    box.addEventListener("change", () => { layer.on = box.checked; layersChanged(); });
    const color = { landmarks: LANDMARK_COLOR, places: PLACE_COLOR, nodes: NODE_COLOR }[layer.key];
    label.append(box, " ", ...(color ? [swatch(color)] : []), layer.title + countOf(layer));
    const row = element("li");
    row.append(label, ...legendOf(layer));
    byId("layers").append(row);
  }
}

function layersChanged() {
  page.dataset.layers = layers.filter(layer => layer.on).map(layer => layer.key).join(",");
  for (const layer of layers) layer.box.checked = layer.on;
  requestDraw();
}

const countOf = layer => (features[layer.key] ? ` (${features[layer.key].length.toLocaleString("en")})` : "");

function swatch(color) {
  const made = element("i");
  made.style.background = color;
  return made;
}

function legendOf(layer) {
  if (layer.ramp) return heightLegend(layer);
  if (layer.key === "nodes") return [element("div", "shown when zoomed in", { class: "ends" })];
  if (layer.key !== "ways") return [];
  const list = element("ul", "", { class: "kinds" });
  for (const [kind, ways] of waysByKind) {
    const row = element("li");
    row.append(swatch(colorOfWay(kind)), `${kind.replaceAll("_", " ")} (${ways.length.toLocaleString("en")})`);
    list.append(row);
  }
  return [list];
}

function heightLegend(layer) {
  const bar = element("div", "", { class: "ramp" }), ends = element("div", "", { class: "ends" });
  bar.style.background = `linear-gradient(to right, ${layer.ramp.join(",")})`;
  const middle = (layer.low + layer.high) / 2;
  ends.append(element("span", `≤ ${layer.low.toFixed(1)}`), element("span", middle.toFixed(1)), element("span", `≥ ${layer.high.toFixed(1)} m`));
  const label = element("label", "Opacity ", { class: "opacity" });
  const slider = element("input", "", { type: "range", min: 0, max: 100, "aria-label": "Opacity of the heights" });
  slider.value = state.heightOpacity * 100;
  slider.addEventListener("input", () => {
    state.heightOpacity = slider.value / 100;
    for (const other of document.querySelectorAll(".opacity input")) other.value = slider.value;
    requestDraw();
  });
  label.append(slider);
  return [bar, ends, label];
}

// ---- search

/** Without case and accents, so that `cafe` finds `Café`. */
const folded = text => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const searchable = labelled
  .map(feature => ({ feature, names: [feature.name, ...feature.aliases].map(folded), type: folded(feature.type).replaceAll("_", " ") }))
  .sort((a, b) => a.names[0].localeCompare(b.names[0]));

/** Features whose names or type hold a text, the best first: equal names, then names that begin with it, then others. */
function matches(text) {
  const wanted = folded(text.trim()).replaceAll("_", " ");
  const rank = entry => {
    if (entry.names.includes(wanted)) return 0;
    if (entry.names.some(name => name.startsWith(wanted))) return 1;
    if (entry.names.some(name => name.includes(wanted))) return 2;
    return entry.type.includes(wanted) ? 3 : 4;
  };
  const ranked = searchable.map(entry => [rank(entry), entry.feature]).filter(([found]) => found < 4);
  return ranked.sort((a, b) => a[0] - b[0]).map(([, feature]) => feature);
}

function listMatches() {
  const found = matches(byId("search").value), shown = found.slice(0, LISTED);
  byId("results").replaceChildren(...shown.map(resultRow));
  byId("count").textContent = !labelled.length
    ? "This scene has no named places."
    : found.length > LISTED ? `${LISTED} of ${found.length.toLocaleString("en")} shown` : `${found.length} found`;
  page.dataset.found = found.length;
}

function resultRow(feature) {
  const button = element("button", "", { type: "button" });
  button.append(element("bdi", feature.name), element("small", feature.type.replaceAll("_", " "), { dir: "auto" }));
  button.addEventListener("click", () => goTo(feature));
  const row = element("li");
  row.append(button);
  return row;
}

function goTo(feature) {
  const layer = layerOf(feature.layer);
  if (!layer.on) { layer.on = true; layersChanged(); }
  hovered = null;
  choose(feature);
  fitBounds(feature.bounds, 0.6);
}

/** The arrow keys walk through the list. */
function resultKey(event) {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const stops = [byId("search"), ...byId("results").querySelectorAll("button")];
  const next = stops[stops.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)];
  if (!next) return;
  event.preventDefault();
  next.focus();
}

// ---- the address: #layers=photo,dsm&find=Name&opacity=50

function readHash() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("layers")) {
    const keys = wanted.get("layers").split(",");
    for (const layer of layers) layer.on = keys.includes(layer.key);
    layersChanged();
  }
  if (wanted.has("opacity")) state.heightOpacity = Math.min(100, Math.max(0, Number(wanted.get("opacity")) || 0)) / 100;
  for (const slider of document.querySelectorAll(".opacity input")) slider.value = state.heightOpacity * 100;
  if (!wanted.has("find")) return;
  byId("search").value = wanted.get("find");
  listMatches();
  const found = matches(wanted.get("find"));
  if (found.length) goTo(found[0]);
}

function start() {
  page.dataset.landmarks = features.landmarks.length;
  page.dataset.ways = features.ways.length;
  showAbout();
  listLayers();
  layersChanged();
  listMatches();
  measure();
  readHash();
  draw();
  new ResizeObserver(() => { measure(); draw(); }).observe(canvas);
  window.addEventListener("hashchange", readHash);
  listenToMoves();
  byId("search").addEventListener("input", listMatches);
  byId("search").addEventListener("keydown", event => {
    const found = event.key === "Enter" ? matches(byId("search").value) : [];
    if (found.length) goTo(found[0]);
  });
  document.querySelector('[aria-label="Search"]').addEventListener("keydown", resultKey);
}

start();
