// Two maps of the same videos by two encoders: what is pointed at or marked on one is so on both. In the same scope,
// map_basics.js is before it.

const data = JSON.parse($("map-points").textContent);
const count = data.names.length, marked = new Uint8Array(count);
const MOST_LISTED = 500; // names; all are copied
const MARGIN = 18, RADIUS = Math.min(5, Math.max(2, 100 / Math.sqrt(count))); // in CSS pixels
let palette = [], over = -1, tipMap = null; // the video that is pointed at, and the map that describes it

const maps = ["left", "right"].map((side, n) => {
  const canvas = $(`map-${side}`).querySelector("canvas"), tip = $(`map-${side}`).querySelector(".tip");
  const dots = document.createElement("canvas"); // an image of all dots: what changes with the pointer is drawn above
  return { canvas, tip, dots, choice: $(`encoder-${side}`), encoder: data.encoders[n], lasso: [], width: 0, height: 0, scale: 1, ratio: 1 };
});

// Drawing ------------------------------------------------------------------------------------------------

const xOf = (map, i) => map.encoder.x[i] * map.scale + map.width / 2; // places are around 0
const yOf = (map, i) => map.encoder.y[i] * map.scale + map.height / 2;

function fit(map) {
  const length = (values) => 2 * values.reduce((most, value) => Math.max(most, Math.abs(value)), 0.01);
  const { x, y } = map.encoder;
  map.scale = Math.min((map.width - 2 * MARGIN) / length(x), (map.height - 2 * MARGIN) / length(y));
}

function drawDots(map) {
  const pen = map.dots.getContext("2d"), { ratio } = map, some = marked.includes(1);
  [map.dots.width, map.dots.height] = [map.canvas.width, map.canvas.height]; // this also wipes it
  for (const layer of some ? [0, 1] : [0]) {
    const images = palette.map((fill) => dotImage(fill, RADIUS * ratio, ratio, some && layer === 0));
    const half = images[0].width / 2;
    for (let i = 0; i < count; i++) {
      if (marked[i] !== layer) continue;
      pen.drawImage(images[data.colors[i]], Math.round(xOf(map, i) * ratio - half), Math.round(yOf(map, i) * ratio - half));
    }
  }
  redraw();
}

function draw(map) {
  const pen = map.canvas.getContext("2d");
  pen.setTransform(1, 0, 0, 1, 0, 0);
  pen.clearRect(0, 0, map.canvas.width, map.canvas.height);
  pen.drawImage(map.dots, 0, 0);
  pen.setTransform(map.ratio, 0, 0, map.ratio, 0, 0);
  if (over >= 0) {
    const [x, y] = [xOf(map, over), yOf(map, over)];
    pen.fillStyle = palette[data.colors[over]];
    pen.strokeStyle = dark.matches ? "#fff" : "#111";
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(x, y, 7, 0, 7);
    pen.fill();
    pen.stroke();
  }
  if (map.lasso.length > 1) drawLasso(pen, map.lasso);
}

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; maps.forEach(draw); });
}

function resize(map) {
  const box = map.canvas.getBoundingClientRect();
  [map.width, map.height, map.ratio] = [box.width, box.height, window.devicePixelRatio || 1];
  [map.canvas.width, map.canvas.height] = [box.width, box.height].map((length) => Math.max(1, Math.round(length * map.ratio)));
  fit(map);
  drawDots(map);
}

function setColors() {
  palette = data.classes.length > 0 ? [...data.classes.map((_, n) => classColor(n)), unknown()] : [classColor(0)];
  for (const swatch of document.querySelectorAll(".marking [data-color]")) swatch.style.background = palette[swatch.dataset.color];
}

// The video that is pointed at ---------------------------------------------------------------------------

function nearest(map, [x, y], reach) {
  let best = -1, least = reach * reach;
  for (let i = 0; i < count; i++) {
    const distance = (xOf(map, i) - x) ** 2 + (yOf(map, i) - y) ** 2;
    if (distance <= least) [best, least] = [i, distance];
  }
  return best;
}

function point(map, i) {
  if (i === over && map === tipMap) return;
  [over, tipMap] = [i, map];
  for (const each of maps) each.tip.hidden = each !== map || i < 0;
  if (i >= 0) describe(map, i);
  redraw();
}

function describe(map, i) {
  map.tip.replaceChildren();
  if (data.clips[i] !== undefined) element("span", "", map.tip).className = `clip v${data.clips[i]}`;
  element("b", data.names[i].replaceAll(/[/_]/g, "$&\u200b"), map.tip); // where long names may break
  const name = data.classes[data.colors[i]];
  if (name !== undefined) element("div", name, map.tip);
  placeBeside(map.tip, xOf(map, i), yOf(map, i), 16, map.width, map.height);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// The nearest dot within 45 degrees of a direction, of the dot that is pointed at or of the middle.
function nextDot(map, [dx, dy]) {
  const [x, y] = over >= 0 ? [xOf(map, over), yOf(map, over)] : [map.width / 2, map.height / 2];
  let best = over, least = Infinity;
  for (let i = 0; i < count; i++) {
    const a = xOf(map, i) - x, b = yOf(map, i) - y, along = a * dx + b * dy, across = Math.abs(a * dy + b * dx);
    if (i !== over && along > 0 && across <= along && along + across < least) [best, least] = [i, along + across];
  }
  return best;
}

// What is marked -----------------------------------------------------------------------------------------

const number = (n, noun = "") => `${n.toLocaleString("en")}${noun && ` ${noun}${n === 1 ? "" : "s"}`}`;

function describeMarked(rows) {
  if (rows.length === 0) return "No videos are marked.";
  const counts = new Map();
  for (const i of rows) counts.set(data.colors[i], (counts.get(data.colors[i]) ?? 0) + 1);
  const sorted = [...counts].sort((one, other) => other[1] - one[1]);
  const parts = sorted.slice(0, 5).map(([n, times]) => `${data.classes[n] ?? "no class"} ${number(times)}`);
  if (sorted.length > 5) parts.push(`${number(sorted.length - 5)} more`);
  return `${number(rows.length, "video")} marked${data.classes.length > 0 ? `: ${parts.join(", ")}` : ""}.`;
}

const markedRows = () => [...marked.keys()].filter((i) => marked[i] === 1);

function showMarked() {
  const rows = markedRows(), list = $("marked-list");
  $("marked-count").textContent = describeMarked(rows);
  $("marked-copy").disabled = $("marked-clear").disabled = list.hidden = rows.length === 0;
  list.replaceChildren();
  for (const i of rows.slice(0, MOST_LISTED)) {
    const item = element("li", "", list);
    item.dataset.row = i;
    element("i", "", item).dataset.color = data.colors[i];
    element("span", data.names[i], item);
  }
  if (rows.length > MOST_LISTED) element("li", `and ${number(rows.length - MOST_LISTED)} more, which are copied too`, list).className = "more";
  for (const [button, rows] of classes) button.setAttribute("aria-pressed", String(rows.every((i) => marked[i] === 1)));
  setColors();
  maps.forEach(drawDots);
}

function markInside(map, adds) {
  if (!adds) marked.fill(0);
  for (let i = 0; i < count; i++) if (inside(xOf(map, i), yOf(map, i), map.lasso)) marked[i] = 1;
  showMarked();
}

const classes = [...document.querySelectorAll(".classes button")].map((button) => [button, []]); // with the rows of each
for (let i = 0; i < count; i++) classes[data.colors[i]]?.[1].push(i);
for (const [button, rows] of classes) {
  button.addEventListener("click", () => {
    const value = button.getAttribute("aria-pressed") === "true" ? 0 : 1;
    for (const i of rows) marked[i] = value;
    showMarked();
  });
}

$("marked-list").addEventListener("pointerover", (event) => {
  const item = event.target.closest("[data-row]");
  point(maps[0], item === null ? -1 : Number(item.dataset.row));
});
$("marked-list").addEventListener("pointerleave", () => point(null, -1));
$("marked-clear").addEventListener("click", () => { marked.fill(0); showMarked(); });
$("marked-copy").addEventListener("click", () => {
  const text = element("textarea", markedRows().map((i) => data.names[i]).join("\n") + "\n", $("marked-copy").parentElement);
  text.select();
  document.execCommand("copy"); // navigator.clipboard is missing on pages that are opened as files in some browsers
  text.remove();
  $("marked-copy").focus();
  $("marked-copy").textContent = "Copied";
  setTimeout(() => { $("marked-copy").textContent = "Copy list"; }, 2000);
});

// Pointer, touch and keyboard ----------------------------------------------------------------------------

for (const map of maps) {
  const { canvas } = map;
  let pointer = null, from; // the pointer that is down, and where it came down

  const end = () => {
    pointer = null;
    map.lasso = [];
    redraw();
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || pointer !== null) return;
    canvas.setPointerCapture(event.pointerId);
    [pointer, from] = [event.pointerId, at(event)];
    map.lasso = [from];
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerId === pointer) {
      map.lasso.push(at(event));
      point(null, -1);
      redraw();
    } else if (pointer === null && event.pointerType !== "touch") {
      point(map, nearest(map, at(event), RADIUS + 5));
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (event.pointerId !== pointer) return;
    if (map.lasso.some(([x, y]) => Math.hypot(x - from[0], y - from[1]) > 4)) markInside(map, event.shiftKey || event.ctrlKey || event.metaKey);
    else point(map, nearest(map, at(event), RADIUS + (event.pointerType === "touch" ? 16 : 5)));
    canvas.focus({ preventScroll: true }); // some browsers do not do it at a tap
    end();
  });
  canvas.addEventListener("pointercancel", (event) => { if (event.pointerId === pointer) end(); });
  canvas.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") point(null, -1); });
  canvas.addEventListener("blur", () => point(null, -1));
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (ARROWS[event.key] !== undefined) {
      point(map, nextDot(map, ARROWS[event.key]));
    } else if (event.key === " " && over >= 0) {
      marked[over] = 1 - marked[over];
      showMarked();
    } else if (event.key === "Escape") {
      end();
      point(null, -1);
    } else return;
    event.preventDefault();
  });
  map.choice?.addEventListener("change", () => {
    map.encoder = data.encoders[map.choice.value];
    canvas.setAttribute("aria-label", `Map by ${map.encoder.name}`);
    fit(map);
    drawDots(map);
  });
}

// Start --------------------------------------------------------------------------------------------------

dark.addEventListener("change", () => { setColors(); maps.forEach(drawDots); });
setColors();
// An observer calls once at its start, too.
for (const map of maps) new ResizeObserver(() => resize(map)).observe(map.canvas);
