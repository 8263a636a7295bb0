"use strict";
// How people move over the map: drag, pinch, wheel, keys and buttons.

function zoomLimits() {
  const fit = Math.min(view.width / scene.size[0], view.height / scene.size[1]);
  return [fit * 0.5, Math.max(40 / scene.gsd, fit * 4)];
}

/** Set the scale (CSS pixels per metre) and keep what is at a place of the canvas where it is. */
function zoomTo(scale, px = view.width / 2, py = view.height / 2) {
  const [least, most] = zoomLimits();
  const x = worldX(px), y = worldY(py);
  view.scale = Math.min(most, Math.max(least, scale));
  moveTo(x - (px - view.width / 2) / view.scale, y + (py - view.height / 2) / view.scale);
}

let standing = 0;

/** Put a world point in the middle; the middle stays in the scene. */
function moveTo(x, y) {
  view.x = Math.min(scene.size[0], Math.max(0, x));
  view.y = Math.min(scene.size[1], Math.max(0, y));
  state.moving = true;
  clearTimeout(standing);
  standing = setTimeout(() => { state.moving = false; requestDraw(); }, 120);
  showReadout();
  requestDraw();
}

/** Show a box of world metres with some ground around it. */
function fitBounds([west, south, east, north], margin) {
  const width = Math.max(east - west, 40), height = Math.max(north - south, 40);
  const scale = Math.min(view.width / width, view.height / height) * margin;
  const [least, most] = zoomLimits();
  view.scale = Math.min(most, Math.max(least, scale));
  moveTo((west + east) / 2, (south + north) / 2);
}

const fitScene = () => fitBounds([0, 0, ...scene.size], 0.98);

/** Take the canvas's new size; a map that showed the whole scene still does. */
function measure() {
  const box = canvas.getBoundingClientRect();
  if (!box.width || !box.height) return;
  const whole = !view.scale || Math.abs(view.scale / (zoomLimits()[0] * 2 * 0.98) - 1) < 0.01;
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  view.left = box.left;
  view.top = box.top;
  view.width = box.width;
  view.height = box.height;
  canvas.width = overlay.width = Math.round(box.width * ratio);
  canvas.height = overlay.height = Math.round(box.height * ratio);
  drawn.cost = 0;
  if (whole) fitScene();
}

// ---- pointers: drag, pinch, click, hover

const pointers = new Map();
let travelled = 0, hovered = null;

function placeOf(event) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function pointerDown(event) {
  if (event.button > 0) return;
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, placeOf(event));
  if (pointers.size === 1) travelled = 0;
  hideTip();
}

function pointerMove(event) {
  const now = placeOf(event), before = pointers.get(event.pointerId);
  if (event.pointerType !== "touch") hovered = now;
  if (!before) return hover(now);
  const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
  pointers.set(event.pointerId, now);
  travelled += Math.hypot(now.x - before.x, now.y - before.y);
  if (other) {
    const spread = Math.hypot(now.x - other.x, now.y - other.y) / Math.max(1, Math.hypot(before.x - other.x, before.y - other.y));
    zoomTo(view.scale * spread, (before.x + other.x) / 2, (before.y + other.y) / 2);
    moveTo(view.x - (now.x - before.x) / 2 / view.scale, view.y + (now.y - before.y) / 2 / view.scale);
  } else if (travelled > 4) {
    moveTo(view.x - (now.x - before.x) / view.scale, view.y + (now.y - before.y) / view.scale);
  }
}

function pointerUp(event) {
  const place = pointers.get(event.pointerId);
  pointers.delete(event.pointerId);
  if (!place || event.type === "pointercancel" || pointers.size || travelled > 4) return;
  choose(featureUnder(place, event.pointerType === "touch" ? 14 : 6));
}

function wheel(event) {
  event.preventDefault();
  const place = placeOf(event), unit = [1, 16, 400][event.deltaMode];
  hideTip();
  zoomTo(view.scale * Math.exp(-event.deltaY * unit * (event.ctrlKey ? 0.01 : 0.0015)), place.x, place.y);
}

const featureUnder = (place, pixels) => featureAt(worldX(place.x), worldY(place.y), pixels / view.scale);

function hover(place) {
  showReadout();
  const feature = featureUnder(place, 6);
  canvas.style.cursor = feature ? "pointer" : "grab";
  if (!feature) return hideTip();
  const tip = byId("tip");
  tip.replaceChildren(...describe(feature));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = place.x + 14 + box.width > view.width ? place.x - 14 - box.width : place.x + 14;
  const top = place.y + 14 + box.height > view.height ? place.y - 14 - box.height : place.y + 14;
  tip.style.transform = `translate(${Math.max(2, left)}px, ${Math.max(2, top)}px)`;
}

const hideTip = () => { byId("tip").hidden = true; };

function keyDown(event) {
  const step = 80 / view.scale;
  const actions = {
    ArrowLeft: () => moveTo(view.x - step, view.y), ArrowRight: () => moveTo(view.x + step, view.y),
    ArrowUp: () => moveTo(view.x, view.y + step), ArrowDown: () => moveTo(view.x, view.y - step),
    "+": () => zoomTo(view.scale * 1.4), "=": () => zoomTo(view.scale * 1.4), "-": () => zoomTo(view.scale / 1.4),
    0: fitScene, Home: fitScene, Escape: () => choose(null),
    Enter: () => choose(featureAt(view.x, view.y, 10 / view.scale)),
  };
  if (event.altKey || event.ctrlKey || event.metaKey || !actions[event.key]) return;
  event.preventDefault();
  hovered = null;
  hideTip();
  actions[event.key]();
}

function listenToMoves() {
  canvas.addEventListener("pointerdown", pointerDown);
  canvas.addEventListener("pointermove", pointerMove);
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, pointerUp);
  canvas.addEventListener("pointerleave", () => { hovered = null; hideTip(); showReadout(); });
  canvas.addEventListener("wheel", wheel, { passive: false });
  canvas.addEventListener("keydown", keyDown);
  for (const change of ["focus", "blur"]) canvas.addEventListener(change, requestDraw);
  byId("zoom-in").addEventListener("click", () => zoomTo(view.scale * 1.6));
  byId("zoom-out").addEventListener("click", () => zoomTo(view.scale / 1.6));
  byId("fit").addEventListener("click", fitScene);
}
