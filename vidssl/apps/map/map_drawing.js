// The map of map.html: what is shown, colours, drawing and view. In the same scope, map_basics.js is before it, and
// map_controls.js follows.

const data = JSON.parse($("points").textContent);
const X = Float32Array.from(data.x), Y = Float32Array.from(data.y), count = X.length;
const seconds = (time) => Number(time.toFixed(2));
const span = (start, end) => (start === null && end === null ? "" : `${seconds(start ?? 0)}-${end === null ? "" : seconds(end)} s`);
const names = data.rows.map(([name, , ...times]) => [name, span(...times)].filter(Boolean).join(" ")), lower = names.map((name) => name.toLowerCase());
const canvas = $("canvas"), context = canvas.getContext("2d"), tip = $("tip");
const MOST_THUMBNAILS = 300; // of more points in view only a sample has thumbnails
const clipNumber = new Map(Object.keys(data.clips).map((row, n) => [Number(row), n]));
const STEPS = 48; // colours of a column of numbers

// What is shown. `state` of a point: 0 hidden by the legend, 1 not found by the search, 2 shown.
const view = { scale: 1, left: 0, top: 0, fitted: true };
const state = new Uint8Array(count).fill(2), color = new Uint16Array(count), selected = new Uint8Array(count);
let hiddenClasses = new Set(), column = null, palette = [], dots = new Map();
let surface, screen; // the pixels of the points, and the same as one number each
let over = -1, kept = -1, isLasso = false, lasso = [], width = 0, height = 0, ratio = 1;

// Colours ------------------------------------------------------------------------------------------------

const SCALE = {
  light: [[224, 169, 46], [209, 85, 47], [142, 32, 100], [47, 17, 89]],
  dark: [[106, 70, 190], [186, 70, 148], [238, 115, 78], [255, 214, 100]],
};

const scaleColor = (part) => {
  const stops = dark.matches ? SCALE.dark : SCALE.light;
  const n = Math.min(stops.length - 2, Math.floor(part * (stops.length - 1))), rest = part * (stops.length - 1) - n;
  return `rgb(${stops[n].map((value, i) => Math.round(value + rest * (stops[n + 1][i] - value))).join(" ")})`;
};

const range = (values) => {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  return [low, high];
};

function setColors() {
  dots = new Map();
  if (column === null) {
    palette = [classColor(0)];
    color.fill(0);
  } else if (column.classes.length > 0) {
    palette = [...column.classes.map((_, n) => classColor(n)), unknown()];
    for (let i = 0; i < count; i++) color[i] = column.values[i] ?? column.classes.length;
  } else {
    const [low, high] = range(column.values);
    palette = [...Array.from({ length: STEPS }, (_, n) => scaleColor(n / (STEPS - 1))), unknown()];
    for (let i = 0; i < count; i++) {
      const value = column.values[i];
      color[i] = value === null ? STEPS : Math.round((high > low ? (value - low) / (high - low) : 0.5) * (STEPS - 1));
    }
  }
}

// Drawing ------------------------------------------------------------------------------------------------

// The pixels of a point, RGBA in one number each.
function dot(fill, radius, faint) {
  const key = `${fill} ${radius} ${faint}`;
  let made = dots.get(key);
  if (made === undefined) {
    const image = dotImage(fill, radius, ratio, faint), size = image.width;
    made = { size, pixels: new Uint32Array(image.getContext("2d").getImageData(0, 0, size, size).data.buffer) };
    dots.set(key, made);
  }
  return made;
}

// Radius of points in CSS pixels: small where there are many, larger after zooming.
function radiusOf() {
  const base = Math.min(5, Math.max(1.6, 80 / Math.sqrt(count)));
  const zoom = view.scale / fitScale();
  return Math.round(4 * Math.min(7, base * Math.max(1, zoom) ** 0.35)) / 4;
}

const clips = new Map(); // images of the thumbnails that were drawn last, by row
function imageOf(row) {
  let image = clips.get(row);
  if (image === undefined) {
    image = new Image();
    image.onload = redraw;
    image.src = `data:image/jpeg;base64,${data.clips[row][3]}`;
    clips.set(row, image);
    if (clips.size > 2 * MOST_THUMBNAILS) clips.delete(clips.keys().next().value);
  }
  return image;
}

let thumbnails = []; // those that are drawn, in CSS pixels
let waiting = false;
function redraw() {
  if (!waiting) {
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }
}

// Points are copied into an array of pixels, which takes a tenth of the time of context.drawImage on a CPU. Of pixels
// that meet the more opaque one stays: the smooth edge of a point does not cut into another.
function copyDot({ size, pixels }, x, y) {
  const w = canvas.width, right = Math.min(size, w - x), bottom = Math.min(size, canvas.height - y);
  for (let row = Math.max(0, -y); row < bottom; row++) {
    for (let column = Math.max(0, -x); column < right; column++) {
      const pixel = pixels[row * size + column], place = (y + row) * w + x + column;
      if (pixel !== 0 && pixel >>> 24 >= screen[place] >>> 24) screen[place] = pixel;
    }
  }
}

function draw() {
  const scale = view.scale * ratio, left = view.left * ratio, top = view.top * ratio;
  const radius = radiusOf() * ratio, inView = [];
  screen.fill(0);
  for (const layer of [1, 2]) {
    const made = palette.map((fill) => dot(fill, radius, layer === 1)), half = made[0].size / 2;
    for (let i = 0; i < count; i++) {
      if (state[i] !== layer) continue;
      const x = Math.round(X[i] * scale + left), y = Math.round(Y[i] * scale + top);
      if (x < -half || y < -half || x > canvas.width + half || y > canvas.height + half) continue;
      copyDot(made[color[i]], x - half, y - half);
      if (layer === 2) inView.push(i);
    }
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.putImageData(surface, 0, 0);
  context.strokeStyle = dark.matches ? "#fff" : "#111";
  context.lineWidth = 1.25 * ratio;
  context.beginPath();
  for (const i of inView) {
    if (selected[i] === 1 || i === over || i === kept) {
      const x = Math.round(X[i] * scale + left), y = Math.round(Y[i] * scale + top), r = radius + 1.25 * ratio;
      context.moveTo(x + r, y);
      context.arc(x, y, r, 0, 7);
    }
  }
  context.stroke();
  drawNear(radius);
  thumbnails = [];
  if ($("thumbnails").checked) drawThumbnails(inView.length <= MOST_THUMBNAILS ? inView : sample(inView));
  if (lasso.length > 1) {
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawLasso(context, lasso);
  }
  placeTip();
}

// Every 2nd, 4th, … of the videos with a thumbnail, about 40: the same ones while the map moves.
function sample(rows) {
  const playing = rows.filter((row) => data.clips[row] !== undefined), step = 2 ** Math.max(0, Math.ceil(Math.log2(playing.length / 40)));
  return playing.filter((row) => clipNumber.get(row) % step === 0);
}

// As many as fit without overlap; the points of the others stay.
function drawThumbnails(rows) {
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.lineWidth = 2;
  for (const row of rows) {
    const clip = data.clips[row];
    if (clip === undefined) continue;
    const w = 0.8 * clip[1], h = 0.8 * clip[2];
    const x = Math.round(X[row] * view.scale + view.left - w / 2), y = Math.round(Y[row] * view.scale + view.top - h / 2);
    const meets = (other) => x < other.x + other.w + 4 && other.x < x + w + 4 && y < other.y + other.h + 4 && other.y < y + h + 4;
    if (thumbnails.some(meets)) continue;
    thumbnails.push({ row, x, y, w, h });
    const image = imageOf(row);
    if (!image.complete || image.naturalWidth === 0) continue;
    const frame = Math.floor(clip[0] / 2);
    context.drawImage(image, frame * clip[1], 0, clip[1], clip[2], x, y, w, h);
    const isMarked = selected[row] === 1 || row === over || row === kept;
    context.strokeStyle = isMarked ? (dark.matches ? "#fff" : "#111") : nearOf(kept).includes(row) ? nearColor() : palette[color[row]];
    context.strokeRect(x, y, w, h);
  }
}

// View ---------------------------------------------------------------------------------------------------

function fitScale() {
  const [low, high] = fitScale.x ??= range(X), [bottom, up] = fitScale.y ??= range(Y);
  return Math.max(1, Math.min((width - 80) / (high - low || 1), (height - 80) / (up - bottom || 1)));
}

function fit() {
  const scale = fitScale();
  Object.assign(view, { scale, left: width / 2, top: height / 2, fitted: true }); // the points are around 0
  redraw();
}

function zoom(factor, x = width / 2, y = height / 2) {
  const scale = Math.min(fitScale() * 400, Math.max(fitScale() * 0.5, view.scale * factor));
  move(x - (x - view.left) * (scale / view.scale) - view.left, y - (y - view.top) * (scale / view.scale) - view.top);
  view.scale = scale;
}

function move(dx, dy) {
  Object.assign(view, { left: view.left + dx, top: view.top + dy, fitted: false });
  redraw();
}

function goTo(i) {
  view.scale = Math.max(view.scale, fitScale() * 3);
  Object.assign(view, { left: width / 2 - X[i] * view.scale, top: height / 2 - Y[i] * view.scale, fitted: false });
  keep(i);
}

function resize() {
  const box = canvas.getBoundingClientRect(), before = [width, height];
  [width, height, ratio] = [box.width, box.height, window.devicePixelRatio || 1];
  [canvas.width, canvas.height] = [width, height].map((length) => Math.max(1, Math.round(length * ratio)));
  surface = context.createImageData(canvas.width, canvas.height);
  screen = new Uint32Array(surface.data.buffer);
  if (view.fitted) fit();
  else move((width - before[0]) / 2, (height - before[1]) / 2);
}
