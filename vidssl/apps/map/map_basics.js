// What the other parts of the map use: colours of classes, images of dots, a box beside a dot, and what a lasso holds.

const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const FIRST = [[217, 65], [24, 85], [150, 55], [330, 62], [48, 80], [275, 50], [188, 75], [2, 68], [95, 50], [250, 12]];

const classColor = (n) => {
  const [hue, saturation] = FIRST[n] ?? [(n * 137.508) % 360, 45 + (n % 3) * 15];
  const shift = n < FIRST.length ? 0 : (Math.floor(n / 10) % 3) * 9 - 9;
  return `hsl(${hue} ${saturation}% ${(dark.matches ? 64 : 45) + shift}%)`;
};

const unknown = () => (dark.matches ? "#747a83" : "#9aa0a8");

// A dot as a square canvas with the dot in its middle; `ratio` are pixels of the screen for each of CSS.
function dotImage(fill, radius, ratio, faint) {
  const image = document.createElement("canvas");
  image.width = image.height = 2 * Math.ceil(radius + ratio + 0.5);
  const pen = image.getContext("2d");
  const disc = (color, r) => {
    pen.fillStyle = color;
    pen.beginPath();
    pen.arc(image.width / 2, image.width / 2, r, 0, 7);
    pen.fill();
  };
  pen.globalAlpha = faint ? 0.13 : 1;
  if (!faint && radius > 2.5 * ratio) disc(dark.matches ? "#1a1c20" : "#fff", radius + 0.7 * ratio); // parts neighbours
  disc(fill, radius);
  return image;
}

// Strokes the lasso and fills it faintly.
function drawLasso(pen, corners) {
  pen.beginPath();
  for (const [x, y] of corners) pen.lineTo(x, y);
  pen.closePath();
  pen.fillStyle = dark.matches ? "rgb(143 178 255 / .16)" : "rgb(42 91 199 / .12)";
  pen.fill();
  pen.strokeStyle = dark.matches ? "#8fb2ff" : "#2a5bc7";
  pen.setLineDash([5, 4]);
  pen.lineWidth = 1.5;
  pen.stroke();
  pen.setLineDash([]);
}

function inside(x, y, corners) {
  let is = false;
  for (let a = 0, b = corners.length - 1; a < corners.length; b = a++) {
    const [ax, ay] = corners[a], [bx, by] = corners[b];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) is = !is;
  }
  return is;
}

// Puts a box beside a dot at x, y, to its right if there is space, within a map of this size.
function placeBeside(box, x, y, gap, width, height) {
  const w = box.offsetWidth, h = box.offsetHeight;
  const beside = x + gap + w + 4 < width ? x + gap : x - gap - w;
  box.style.left = `${Math.max(4, Math.min(beside, width - w - 4))}px`;
  box.style.top = `${Math.max(4, Math.min(y - h / 2, height - h - 4))}px`;
}

const element = (tag, text, parent) => {
  const made = document.createElement(tag);
  made.textContent = text;
  parent.append(made);
  return made;
};

// The position of a pointer on the element that it belongs to.
const at = (event) => {
  const box = event.currentTarget.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
