// The map of map.html: what the pointer, fingers, keys and the forms beside it do. It follows map_drawing.js.

// The video under the pointer ----------------------------------------------------------------------------

function videoAt(x, y, reach) {
  const drawn = thumbnails.find((one) => x >= one.x && x <= one.x + one.w && y >= one.y && y <= one.y + one.h);
  if (drawn !== undefined) return drawn.row; // they lie above the points
  let best = -1, least = reach * reach;
  for (let i = 0; i < count; i++) {
    if (state[i] !== 2) continue;
    const dx = X[i] * view.scale + view.left - x, dy = Y[i] * view.scale + view.top - y, distance = dx * dx + dy * dy;
    if (distance <= least) [best, least] = [i, distance];
  }
  return best;
}

function describe(i) {
  tip.replaceChildren();
  const [name, , start, end] = data.rows[i], clip = data.clips[i];
  if (clip !== undefined) {
    const [frames, w, h, jpeg] = clip, made = element("span", "", tip);
    made.className = "clip";
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", name);
    for (const [key, value] of [["--n", frames], ["--w", 2 * w], ["--h", 2 * h]]) made.style.setProperty(key, value);
    made.style.backgroundImage = `url(data:image/jpeg;base64,${jpeg})`;
    if (frames === 1) made.style.animation = "none";
  }
  element("b", name, tip);
  if (span(start, end)) element("div", span(start, end), tip);
  for (const each of data.columns) {
    const value = each.values[i];
    if (value !== null) element("div", `${each.name}: ${each.classes.length > 0 ? each.classes[value] : value}`, tip);
  }
}

let described = -1;
function placeTip() {
  const i = kept >= 0 ? kept : over;
  tip.hidden = i < 0;
  if (i < 0) return;
  if (described !== i) describe(described = i);
  tip.classList.toggle("fixed", kept >= 0);
  const x = X[i] * view.scale + view.left, y = Y[i] * view.scale + view.top;
  const thumbnail = thumbnails.find((one) => one.row === i), gap = thumbnail === undefined ? radiusOf() + 10 : thumbnail.w / 2 + 8;
  placeBeside(tip, x, y, gap, width, height);
  tip.hidden = x < 0 || y < 0 || x > width || y > height; // moved out of sight
}

function keep(i) {
  kept = i;
  if ($("near") !== null) listNear();
  redraw();
}

function hover(i) {
  if (i === over) return;
  over = i;
  canvas.classList.toggle("over", i >= 0 && !isLasso);
  redraw();
}

// Pointer, touch and keyboard ----------------------------------------------------------------------------

const pointers = new Map(); // position of each pointer that is down
let drag = null; // of the first one: where it started, whether it moved, and whether it draws the lasso

canvas.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, at(event));
  if (pointers.size === 1) {
    drag = { from: at(event), moved: false, draws: isLasso || event.shiftKey, adds: event.ctrlKey || event.metaKey };
    if (drag.draws) lasso = [drag.from];
  } else if (drag !== null) { // a second finger: it zooms
    Object.assign(drag, { moved: true, draws: false });
    lasso = [];
  }
});

canvas.addEventListener("pointermove", (event) => {
  const now = at(event), before = pointers.get(event.pointerId);
  if (before === undefined || drag === null) {
    hover(videoAt(...now, radiusOf() + 6));
    return;
  }
  if (pointers.size === 1) {
    if (Math.hypot(now[0] - drag.from[0], now[1] - drag.from[1]) > 4) drag.moved = true;
    if (drag.draws) lasso.push(now);
    else if (drag.moved) move(now[0] - before[0], now[1] - before[1]);
    redraw();
  } else if (pointers.size === 2) {
    const [, other] = [...pointers].find(([id]) => id !== event.pointerId);
    const length = (point) => Math.max(1, Math.hypot(point[0] - other[0], point[1] - other[1]));
    move((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    zoom(length(now) / length(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  }
  pointers.set(event.pointerId, now);
});

function release(event) {
  if (!pointers.delete(event.pointerId) || pointers.size > 0 || drag === null) return;
  const { moved, draws, adds } = drag;
  drag = null;
  if (event.type === "pointerup" && !moved) keep(videoAt(...at(event), radiusOf() + (event.pointerType === "touch" ? 14 : 6)));
  else if (event.type === "pointerup" && draws) selectInside(lasso, adds);
  lasso = [];
  redraw();
}
canvas.addEventListener("pointerup", release);
canvas.addEventListener("pointercancel", release);
canvas.addEventListener("pointerleave", () => hover(-1));

canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.deltaMode === 1 ? 0.04 : 0.0015)), ...at(event));
}, { passive: false });

const KEYS = {
  ArrowLeft: () => move(60, 0), ArrowRight: () => move(-60, 0), ArrowUp: () => move(0, 60), ArrowDown: () => move(0, -60),
  "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), "0": fit,
};
canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || KEYS[event.key] === undefined) return;
  event.preventDefault();
  KEYS[event.key]();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  [drag, lasso] = [null, []];
  pointers.clear();
  keep(-1);
});

function setLasso(on) {
  isLasso = on;
  $("lasso").setAttribute("aria-pressed", String(on));
  $("pan").setAttribute("aria-pressed", String(!on));
  canvas.classList.toggle("lasso", on);
}
$("lasso").addEventListener("click", () => setLasso(true));
$("pan").addEventListener("click", () => setLasso(false));
$("in").addEventListener("click", () => zoom(1.5));
$("out").addEventListener("click", () => zoom(1 / 1.5));
$("fit").addEventListener("click", fit);
$("thumbnails").addEventListener("change", redraw);

// Legend and search --------------------------------------------------------------------------------------

function apply() {
  const text = $("search").value.trim().toLowerCase(), found = [];
  for (let i = 0; i < count; i++) {
    const matches = text === "" || lower[i].includes(text);
    state[i] = hiddenClasses.has(color[i]) ? 0 : matches ? 2 : 1;
    if (text !== "" && state[i] === 2) found.push(i);
  }
  if (kept >= 0 && state[kept] === 0) keep(-1);
  over = -1;
  $("matches").hidden = text === "";
  $("matches").textContent = `${found.length.toLocaleString("en")} ${found.length === 1 ? "video" : "videos"} found${found.length > 50 ? ", the first 50:" : ""}`;
  $("found").replaceChildren();
  for (const i of found.slice(0, 50)) {
    const button = element("button", names[i], element("li", "", $("found")));
    button.type = "button";
    button.addEventListener("click", () => goTo(i));
  }
  redraw();
}

const legendInputs = () => [...$("legend").querySelectorAll("input")];

function setColumn(number) {
  column = data.columns[number] ?? null;
  hiddenClasses = new Set();
  setColors();
  $("legend").replaceChildren();
  const isScale = column !== null && column.classes.length === 0 && column.values.some((value) => value !== null);
  $("scale").hidden = !isScale;
  const counts = new Map();
  for (let i = 0; i < count; i++) counts.set(color[i], (counts.get(color[i]) ?? 0) + 1);
  let rows = [];
  if (isScale) {
    const [low, high] = range(column.values);
    [$("low").textContent, $("high").textContent] = [low, high].map((value) => value.toLocaleString("en", { maximumSignificantDigits: 4 }));
    rows = counts.has(STEPS) ? [[STEPS, "no value"]] : [];
  } else if (column !== null) {
    rows = [...column.classes.entries()];
    if (counts.has(column.classes.length)) rows.push([column.classes.length, "no value"]);
  }
  for (const [n, name] of rows) {
    const label = element("label", "", element("li", "", $("legend"))), input = element("input", "", label);
    Object.assign(input, { type: "checkbox", checked: true, value: n });
    element("i", "", label);
    element("span", name, label);
    element("span", (counts.get(n) ?? 0).toLocaleString("en"), label).className = "count";
  }
  $("toggles").hidden = rows.length < 2;
  paintLegend();
  apply();
}

function paintLegend() {
  for (const input of legendInputs()) input.nextElementSibling.style.background = palette[input.value];
  $("ramp").style.background = `linear-gradient(to right, ${palette.slice(0, STEPS).join(", ")})`;
}

function toggle() {
  hiddenClasses = new Set(legendInputs().filter((input) => !input.checked).map((input) => Number(input.value)));
  apply();
}
const setAll = (on) => { for (const input of legendInputs()) input.checked = on; toggle(); };
$("legend").addEventListener("change", toggle);
$("all").addEventListener("click", () => setAll(true));
$("none").addEventListener("click", () => setAll(false));
$("search").addEventListener("input", apply);
$("column").addEventListener("change", () => setColumn(Number($("column").value)));

// Selection ----------------------------------------------------------------------------------------------

function selectInside(corners, adds) {
  if (!adds) selected.fill(0);
  for (let i = 0; i < count; i++) {
    if (state[i] === 2 && inside(X[i] * view.scale + view.left, Y[i] * view.scale + view.top, corners)) selected[i] = 1;
  }
  listSelected();
}

const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function listSelected() {
  const rows = data.rows.filter((_, i) => selected[i] === 1);
  // As vidssl writes lists: columns that no row needs are left out.
  const used = ["path", "label", "start", "end"].map((name, n) => [name, n]).filter(
    ([, n]) => n === 0 || data.rows.some((row) => row[n] !== (n === 1 ? -1 : null)));
  const lines = [used.map(([name]) => name), ...rows.map((row) => used.map(([, n]) => quoted(String(row[n] ?? ""))))];
  $("list").value = lines.map((line) => line.join(",") + "\n").join("");
  $("chosen").hidden = rows.length === 0;
  $("clear").disabled = rows.length === 0;
  $("selected").textContent = rows.length === 0 ? "Nothing is selected: draw around points with the lasso."
    : `${rows.length.toLocaleString("en")} ${rows.length === 1 ? "video" : "videos"} selected.`;
  redraw();
}

$("shown").addEventListener("click", () => {
  for (let i = 0; i < count; i++) selected[i] = state[i] === 2 ? 1 : 0;
  listSelected();
});
$("clear").addEventListener("click", () => { selected.fill(0); listSelected(); });
$("download").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([$("list").value], { type: "text/csv" }));
  link.download = "selection.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
});
$("copy").addEventListener("click", () => {
  $("list").select();
  document.execCommand("copy"); // navigator.clipboard is missing on pages that are opened as files in some browsers
});

// Start --------------------------------------------------------------------------------------------------

dark.addEventListener("change", () => { setColors(); paintLegend(); redraw(); });
new ResizeObserver(resize).observe(canvas);
resize();
setColumn(Number($("column").value));
