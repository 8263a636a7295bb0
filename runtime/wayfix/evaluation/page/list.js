"use strict";
// The list of queries: filters, search, order, pages; all of it is kept in the address.

const PER_PAGE = 50;
const page = document.documentElement;
const data = JSON.parse(byId("list-data").textContent);
const classes = new Map(data.classes.map(entry => [entry.key, entry]));
/** Without case and accents, so that `cafe` finds `Café`. */
const plainText = text => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const rows = data.rows.map((row, number) => ({
  ...row, number, kept: byId(`search-${number}`) !== null,
  words: plainText([row.query, row.id, row.landmark, row.kind, row.scene, row.code].filter(known).join("\n")),
}));
const CHOICES = { kind: "all kinds", condition: "all", scene: "all scenes" };
const SORTS = {
  order: row => row.number, id: row => row.id, iou: row => row.iou_2d, turns: row => row.turns, time: row => row.total_ms,
};
const usual = { text: "", kind: "", condition: data.conditions.includes("clean") ? "clean" : "", scene: "", sort: "order", down: false, page: 1, open: null };
const state = { ...usual, classes: new Set() };
let listed = [];

// ---- which rows, in which order

/** Whether a row passes all filters, or all but one. */
function passes(row, but = "") {
  if (but !== "class" && state.classes.size && !state.classes.has(row.class)) return false;
  for (const name of Object.keys(CHOICES)) if (name !== but && state[name] && row[name] !== state[name]) return false;
  return !state.text || plainText(state.text).split(/\s+/).every(word => row.words.includes(word));
}

function ordered(found) {
  const key = SORTS[state.sort], sign = state.down ? -1 : 1;
  return found.sort((a, b) => {
    const x = key(a), y = key(b);
    if (!known(x) || !known(y)) return known(y) - known(x) || a.number - b.number; // What was not measured comes last.
    const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
    return sign * order || a.number - b.number;
  });
}

// ---- the page

function update() {
  listed = ordered(rows.filter(row => passes(row)));
  if (state.open && !listed.includes(state.open)) state.open = null;
  const pages = Math.max(1, Math.ceil(listed.length / PER_PAGE));
  if (state.open) state.page = Math.floor(listed.indexOf(state.open) / PER_PAGE) + 1;
  state.page = Math.min(Math.max(1, state.page), pages);
  const shown = listed.slice((state.page - 1) * PER_PAGE, state.page * PER_PAGE);
  byId("rows").replaceChildren(...shown.map(rowItem));
  byId("count").textContent = `${listed.length} of ${rows.length} searches`;
  byId("pages").hidden = pages === 1;
  byId("page-number").textContent = `page ${state.page} of ${pages}`;
  byId("before").disabled = state.page === 1;
  byId("after").disabled = state.page === pages;
  showFilters();
  page.dataset.listed = listed.length;
}

function rowItem(row) {
  const item = element("li", "", { "data-id": row.id, "data-class": row.class }), opened = row === state.open;
  const button = element("button", "", { type: "button", class: "row", "aria-expanded": opened });
  const kind = element("span", "", { class: "class" });
  kind.append(element("i", "", { class: `mark ${row.class}` }), classes.get(row.class).title);
  const about = [row.kind, state.condition ? null : row.condition, row.id].filter(known).join(" · ");
  button.append(
    kind,
    element("bdi", row.query, { class: "query", dir: "auto" }),
    element("span", about, { class: "about", dir: "auto" }),
    element("span", known(row.iou_2d) ? `IoU ${row.iou_2d.toFixed(2)}` : "", { class: "value" }),
    element("span", counted(row.turns, "turn"), { class: "value" }),
    element("span", milliseconds(row.total_ms), { class: "value" }),
  );
  if (row.kept) {
    const eye = shape("svg", { class: "eye", viewBox: "0 0 16 12", role: "img", "aria-label": "with pictures" });
    eye.append(shape("path", { d: "M1 6Q8-3 15 6Q8 15 1 6Z" }), shape("circle", { cx: 8, cy: 6, r: 2 }));
    button.append(eye);
  }
  button.addEventListener("click", () => choose(opened ? null : row));
  item.append(button);
  if (opened) item.append(openedQuery(row, buttonsFor(row)));
  return item;
}

/** Close, the queries before and after, and the same query under other landmark conditions. */
function buttonsFor(row) {
  const at = listed.indexOf(row);
  const button = (text, to) => {
    const made = element("button", text, { type: "button" });
    made.disabled = to === undefined;
    made.addEventListener("click", () => choose(to, true));
    return made;
  };
  const others = rows.filter(other => other !== row && other.id === row.id && other.scene === row.scene);
  return [
    button("Close", null), button("‹ Before", listed[at - 1]), button("After ›", listed[at + 1]),
    ...others.map(other => button(`${other.condition} landmarks: ${classes.get(other.class).title}`, other)),
  ];
}

/** Open a query, or none; `moved` where the reader came from another place than its row. */
function choose(row, moved = false) {
  const before = state.open;
  if (row && !passes(row)) Object.assign(state, usual, { condition: row.condition, classes: new Set() });
  state.open = row;
  update();
  history.pushState(null, "", address());
  const button = itemOf(row || before)?.querySelector("button");
  button?.focus({ preventScroll: true });
  const top = button?.getBoundingClientRect().top;
  if (button && (moved || top < 40 || top > innerHeight * 0.6)) button.parentElement.scrollIntoView();
}

const itemOf = row => byId("rows").children[listed.indexOf(row) - (state.page - 1) * PER_PAGE];

// ---- filters

function makeFilters() {
  for (const { key, title, note } of data.classes) {
    const button = element("button", "", { type: "button", title: note, "data-class": key });
    button.append(element("i", "", { class: `mark ${key}` }), title, element("span", "", { class: "number" }));
    button.addEventListener("click", () => {
      if (!state.classes.delete(key)) state.classes.add(key);
      filtersChanged();
    });
    byId("classes").append(button);
  }
  for (const [name, title] of Object.entries(CHOICES)) {
    const values = name === "condition" ? data.conditions : [...new Set(rows.map(row => row[name]).filter(known))].sort();
    const options = ["", ...values].map(value => {
      const option = element("option");
      [option.value, option.title] = [value, value || title];
      return option;
    });
    byId(name).append(...options);
    byId(name).parentElement.hidden = values.length < 2;
    byId(name).addEventListener("change", event => { state[name] = event.target.value; filtersChanged(); });
  }
}

/** What is chosen, and how many searches each choice would leave. */
function showFilters() {
  const tally = name => {
    const counts = new Map();
    for (const row of rows) if (passes(row, name)) counts.set(row[name], (counts.get(row[name]) || 0) + 1);
    return counts;
  };
  const byClass = tally("class");
  for (const button of byId("classes").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", state.classes.has(button.dataset.class));
    button.lastChild.textContent = byClass.get(button.dataset.class) || 0;
  }
  for (const name of Object.keys(CHOICES)) {
    const counts = tally(name), all = [...counts.values()].reduce((sum, n) => sum + n, 0);
    for (const option of byId(name).options) option.textContent = `${option.title} (${option.value ? counts.get(option.value) || 0 : all})`;
    byId(name).value = state[name];
  }
  if (byId("text").value !== state.text) byId("text").value = state.text;
  byId("sort").value = state.sort;
  byId("down").setAttribute("aria-pressed", state.down);
}

function filtersChanged() {
  state.page = 1;
  state.open = null;
  update();
  history.replaceState(null, "", address());
}

// ---- the address: #class=wrong,away&kind=ordinal&text=red+car&sort=iou&open=ID&under=clean

function address() {
  const said = new URLSearchParams();
  if (state.classes.size) said.set("class", [...state.classes].join(","));
  for (const name of ["text", "kind", "condition", "scene", "sort"]) if (state[name] !== usual[name]) said.set(name, state[name]);
  if (state.down) said.set("down", "1");
  if (state.open) {
    said.set("open", state.open.id);
    said.set("under", state.open.condition);
  } else if (state.page > 1) said.set("page", state.page);
  return "#" + said;
}

function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, usual, { classes: new Set((said.get("class") || "").split(",").filter(key => classes.has(key))) });
  state.text = said.get("text") || "";
  for (const name of Object.keys(CHOICES)) {
    const wanted = said.get(name);
    if ([...byId(name).options].some(option => option.value === wanted)) state[name] = wanted;
  }
  if (Object.hasOwn(SORTS, said.get("sort") || "")) state.sort = said.get("sort");
  state.down = said.get("down") === "1";
  state.page = Math.trunc(Number(said.get("page"))) || 1;
  const meant = rows.filter(row => row.id === said.get("open"));
  state.open = meant.find(row => row.condition === said.get("under")) || meant[0] || null;
  if (state.open && !passes(state.open)) Object.assign(state, usual, { condition: state.open.condition, classes: new Set(), open: state.open });
  update();
  if (state.open) itemOf(state.open).scrollIntoView();
  else if ([...said.keys()].some(name => name in state || name === "class")) byId("queries").scrollIntoView();
}

// ---- keys

/** Arrows walk through the rows, Escape closes the opened one. */
function listKey(event) {
  if (event.key === "Escape" && state.open) return choose(null);
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const stops = [...byId("rows").querySelectorAll(".row")];
  const at = stops.indexOf(document.activeElement), next = stops[at + (event.key === "ArrowDown" ? 1 : -1)];
  if (at < 0 || !next) return;
  event.preventDefault();
  next.focus();
}

function turnPage(step) {
  state.page += step;
  state.open = null;
  update();
  history.replaceState(null, "", address());
  byId("count").scrollIntoView();
}

function start() {
  document.title = `${data.title} - Wayfix evaluation`;
  makeFilters();
  readAddress();
  window.addEventListener("hashchange", readAddress);
  byId("text").addEventListener("input", event => { state.text = event.target.value.trim(); filtersChanged(); });
  byId("sort").addEventListener("change", event => { state.sort = event.target.value; filtersChanged(); });
  byId("down").addEventListener("click", () => { state.down = !state.down; filtersChanged(); });
  byId("filters").addEventListener("submit", event => event.preventDefault());
  byId("filters").addEventListener("reset", event => {
    event.preventDefault();
    Object.assign(state, usual, { condition: "", classes: new Set() });
    filtersChanged();
  });
  byId("before").addEventListener("click", () => turnPage(-1));
  byId("after").addEventListener("click", () => turnPage(1));
  byId("rows").addEventListener("keydown", listKey);
  // A plain jump would overwrite the state that the address holds.
  document.querySelector("nav").addEventListener("click", event => {
    const part = event.target.closest("a")?.getAttribute("href").slice(1);
    if (!part) return;
    event.preventDefault();
    byId(part).scrollIntoView();
    byId(part).focus({ preventScroll: true });
  });
  page.dataset.ready = "true";
}

start();
