(() => {
  "use strict";
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("points").textContent);
  const X = Float32Array.from(data.x), Y = Float32Array.from(data.y), count = X.length;
  const names = data.rows.map((row) => row[0]), lower = names.map((name) => name.toLowerCase());
  const canvas = $("canvas"), context = canvas.getContext("2d"), tip = $("tip");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const MOST_THUMBNAILS = 300; // thumbnails are drawn while at most so many points are in view
  const STEPS = 48; // colours of a column of numbers

  // What is shown. `state` of a point: 0 hidden by the legend, 1 not found by the search, 2 shown.
  const view = { scale: 1, left: 0, top: 0, fitted: true };
  const state = new Uint8Array(count).fill(2), color = new Uint16Array(count), selected = new Uint8Array(count);
  let hiddenClasses = new Set(), column = null, palette = [], dots = new Map();
  let surface, screen; // the pixels of the points, and the same as one number each
  let over = -1, kept = -1, isLasso = false, lasso = [], width = 0, height = 0, ratio = 1;

  // Colours ------------------------------------------------------------------------------------------------

  const FIRST = [[217, 65], [24, 85], [150, 55], [330, 62], [48, 80], [275, 50], [188, 75], [2, 68], [95, 50], [250, 12]];
  const SCALE = {
    light: [[224, 169, 46], [209, 85, 47], [142, 32, 100], [47, 17, 89]],
    dark: [[106, 70, 190], [186, 70, 148], [238, 115, 78], [255, 214, 100]],
  };

  const classColor = (n) => {
    const [hue, saturation] = FIRST[n] ?? [(n * 137.508) % 360, 45 + (n % 3) * 15];
    const shift = n < FIRST.length ? 0 : (Math.floor(n / 10) % 3) * 9 - 9;
    return `hsl(${hue} ${saturation}% ${(dark.matches ? 64 : 45) + shift}%)`;
  };

  const scaleColor = (part) => {
    const stops = dark.matches ? SCALE.dark : SCALE.light;
    const n = Math.min(stops.length - 2, Math.floor(part * (stops.length - 1))), rest = part * (stops.length - 1) - n;
    return `rgb(${stops[n].map((value, i) => Math.round(value + rest * (stops[n + 1][i] - value))).join(" ")})`;
  };

  const unknown = () => (dark.matches ? "#747a83" : "#9aa0a8");

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
      const size = 2 * Math.ceil(radius + ratio + 0.5);
      const drawing = document.createElement("canvas");
      drawing.width = drawing.height = size;
      const pen = drawing.getContext("2d");
      const disc = (color, r) => {
        pen.fillStyle = color;
        pen.beginPath();
        pen.arc(size / 2, size / 2, r, 0, 7);
        pen.fill();
      };
      pen.globalAlpha = faint ? 0.13 : 1;
      if (!faint && radius > 2.5 * ratio) disc(dark.matches ? "#1a1c20" : "#fff", radius + 0.7 * ratio); // parts neighbours
      disc(fill, radius);
      made = { size, pixels: new Uint32Array(pen.getImageData(0, 0, size, size).data.buffer) };
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
    thumbnails = [];
    if ($("thumbnails").checked && inView.length <= MOST_THUMBNAILS) drawThumbnails(inView);
    if (lasso.length > 1) {
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.beginPath();
      for (const [x, y] of lasso) context.lineTo(x, y);
      context.closePath();
      context.fillStyle = dark.matches ? "rgb(143 178 255 / .16)" : "rgb(42 91 199 / .12)";
      context.fill();
      context.strokeStyle = dark.matches ? "#8fb2ff" : "#2a5bc7";
      context.setLineDash([5, 4]);
      context.lineWidth = 1.5;
      context.stroke();
      context.setLineDash([]);
    }
    placeTip();
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
      context.strokeStyle = isMarked ? (dark.matches ? "#fff" : "#111") : palette[color[row]];
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

  const element = (tag, text, parent) => {
    const made = document.createElement(tag);
    made.textContent = text;
    parent.append(made);
    return made;
  };

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
    if (start !== null || end !== null) element("div", `${start ?? 0} to ${end ?? "the end"} s`, tip);
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
    const w = tip.offsetWidth, h = tip.offsetHeight;
    tip.hidden = x < 0 || y < 0 || x > width || y > height; // moved out of sight
    const beside = x + gap + w + 4 < width ? x + gap : x - gap - w;
    tip.style.left = `${Math.max(4, Math.min(beside, width - w - 4))}px`;
    tip.style.top = `${Math.max(4, Math.min(y - h / 2, height - h - 4))}px`;
  }

  function keep(i) {
    kept = i;
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

  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

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
    if (kept >= 0 && state[kept] === 0) kept = -1;
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

  function inside(x, y, corners) {
    let is = false;
    for (let a = 0, b = corners.length - 1; a < corners.length; b = a++) {
      const [ax, ay] = corners[a], [bx, by] = corners[b];
      if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) is = !is;
    }
    return is;
  }

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
    $("selected").textContent = rows.length === 0 ? "No videos are selected: draw around them with the lasso."
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
})();
