// The rows of queries. Only groups of rows near the screen are in the page: it stays fast with thousands of queries.

const GROUP = 4; // rows
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const feed = $("rows"), search = $("search"), misses = $("misses"), chosen = $("class");

const element = (tag, name, parent, text = "") => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.textContent = text;
  parent?.append(made);
  return made;
};

const nameOf = ([file, , span]) => `${data.files[file][0]} ${span}`.trim();
const breakable = (text) => text.replaceAll(/[/_]/g, "$&\u200b"); // where long names may break
const labels = data.queries.map(([video]) => data.videos[video][1]);
const texts = data.queries.map(([video], n) => `${nameOf(data.videos[video])} ${data.classes[labels[n]] ?? ""}`.toLowerCase());

// Whether a video has the class of the query; null if unknown.
function verdict(n, video) {
  const label = data.videos[video][1];
  return labels[n] < 0 || label < 0 ? null : label === labels[n];
}

const isMiss = (n) => data.queries[n][1].length > 0 && verdict(n, data.queries[n][1][0][0]) === false;

// A row ------------------------------------------------------------------------------------------------------

function clip([file, count, width, height, enlarged], text, parent) {
  const made = element("span", `clip${count === 1 ? " still" : ""}${enlarged ? " enlarged" : ""}`, parent);
  made.style.cssText = `--n: ${count}; --w: ${width}; --h: ${height}`;
  const image = element("img", "", made);
  image.loading = "lazy";
  image.decoding = "async";
  image.alt = text;
  image.src = file;
}

const setIcon = (button, name) => button.replaceChildren($(name).content.cloneNode(true));

function figure(video, similarity, parent, { role = "query", right = null, isCopy = false, maps = [] } = {}) {
  const [file, label, span, moment, preview] = data.videos[video], [name, , link] = data.files[file];
  const figure = element("figure", "video", parent), stage = element("div", "stage", figure);
  const frame = element(link ? "a" : "span", "frame", stage);
  if (link) {
    frame.href = link + moment;
    frame.target = "_blank";
    frame.rel = "noopener";
    frame.title = "Open the video";
  }
  if (preview === null) element("span", "none", frame, `${name}: cannot be decoded`);
  else clip(preview, nameOf(data.videos[video]), frame);
  if (right !== null) {
    const mark = element("span", "mark", frame, right ? "✓" : "✗");
    mark.setAttribute("role", "img");
    mark.setAttribute("aria-label", right ? "same class" : "another class");
  }
  if (maps.length > 0) {
    const both = element("div", "maps", figure);
    for (const [n, whose] of ["query", "this video"].entries()) {
      const cell = element("div", "", both);
      clip(maps[n], `Map of the ${whose}`, cell);
      element("small", "", cell, whose);
    }
  }
  const words = element("figcaption", "", figure);
  if (label >= 0) element("div", "class", words, data.classes[label]);
  element("div", "number", words, similarity === null ? role : `similarity ${similarity.toFixed(3)}`);
  const path = element("div", "file", words), cut = name.replace(/\/$/, "").lastIndexOf("/") + 1;
  const copy = element("button", "copy", path);
  copy.type = "button";
  copy.title = "Copy the path";
  copy.setAttribute("aria-label", `Copy the path of ${name}`);
  copy.dataset.file = file;
  setIcon(copy, "pages");
  if (cut > 0) element("span", "folder", path, breakable(name.slice(0, cut)));
  element("span", "", path, breakable(name.slice(cut)));
  if (span) element("div", "moment", words, span);
  if (isCopy) element("div", "same", words, "Duplicate of the query");
}

function row(n, place) {
  const [video, hits, ...examples] = data.queries[n], made = element("article", "row card");
  made.tabIndex = -1;
  made.setAttribute("aria-label", `Query ${nameOf(data.videos[video])}`);
  made.setAttribute("aria-posinset", place + 1);
  made.setAttribute("aria-setsize", shown.length);
  made.dataset.query = n;
  const query = element("div", "query", made);
  for (const example of [video, ...examples]) figure(example, null, query, { role: examples.length ? "example" : "query" });
  const list = element("ol", "hits", made);
  list.setAttribute("aria-label", "Nearest videos");
  for (const [hit, similarity, isCopy, ...maps] of hits) {
    const right = verdict(n, hit);
    const item = element("li", right === null ? "neutral" : right ? "hit" : "miss", list);
    figure(hit, similarity, item, { right, isCopy: isCopy === 1, maps });
  }
  if (hits.length === 0) list.replaceWith(element("p", "muted", null, "The gallery has no other video."));
  return made;
}

// What is in the page ----------------------------------------------------------------------------------------

let shown = []; // numbers of the queries that fit the filter
let measured = false;

function fill(group) {
  if (group.firstChild) return;
  const first = Number(group.dataset.first);
  group.append(...shown.slice(first, first + GROUP).map((n, k) => row(n, first + k)));
  if (!measured && group.offsetHeight > 0) { // the height of groups to come
    measured = true;
    document.documentElement.style.setProperty("--row", `${group.offsetHeight / group.childElementCount}px`);
  }
}

function clear(group) {
  if (!group.firstChild || group.contains(document.activeElement)) return;
  const height = group.offsetHeight;
  group.replaceChildren();
  group.style.height = `${height}px`;
}

const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      target.style.height = "";
      fill(target);
    } else clear(target);
  }
}, { rootMargin: "100% 0px" });

function arrange() {
  const words = (search?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const only = misses?.getAttribute("aria-pressed") === "true", label = chosen?.value ?? "";
  shown = [...data.queries.keys()].filter((n) =>
    (label === "" || String(labels[n]) === label) && (!only || isMiss(n)) && words.every((word) => texts[n].includes(word)));
  near.disconnect();
  feed.replaceChildren();
  for (let first = 0; first < shown.length; first += GROUP) {
    const group = element("div", "group", feed);
    group.dataset.first = first;
    group.style.setProperty("--count", Math.min(GROUP, shown.length - first));
    if (first < 2 * GROUP) fill(group); // at once, so that nothing flickers
    near.observe(group);
  }
  $("empty").hidden = shown.length > 0 || data.queries.length === 0;
  showCount();
}

function showCount() {
  const all = data.queries.length, count = (n) => n.toLocaleString("en");
  $("count").textContent = `${shown.length === all ? "" : `${count(shown.length)} of `}${count(all)} ${all === 1 ? "query" : "queries"}`;
}

function filter() {
  arrange();
  const top = feed.getBoundingClientRect().top;
  if (top < 0) scrollBy({ top: top - 120, behavior: "instant" }); // to the first row
}

search?.addEventListener("input", filter);
chosen?.addEventListener("change", filter);
misses?.addEventListener("click", () => {
  misses.setAttribute("aria-pressed", misses.getAttribute("aria-pressed") === "true" ? "false" : "true");
  filter();
});

// Keys and copying -------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && search && document.activeElement !== search && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});
search?.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || search.value === "") return;
  search.value = "";
  filter();
});

// The row before or after one; the groups beside that of the focus may be empty.
function beside(current, step) {
  const side = step > 0 ? "nextElementSibling" : "previousElementSibling";
  if (current[side]) return current[side];
  const group = current.parentElement[side];
  if (!group) return null;
  fill(group);
  return step > 0 ? group.firstElementChild : group.lastElementChild;
}

feed.addEventListener("keydown", (event) => {
  const step = { PageDown: 1, PageUp: -1 }[event.key], current = event.target.closest(".row");
  const next = step === undefined || current === null ? null : beside(current, step);
  if (next === null) return;
  event.preventDefault();
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
});

feed.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (button === null) return;
  const text = element("textarea", "", button.parentElement);
  text.value = data.files[button.dataset.file][1];
  text.select();
  document.execCommand("copy"); // navigator.clipboard is missing on pages that are opened as files in some browsers
  text.remove();
  button.focus({ preventScroll: true });
  setIcon(button, "tick");
  $("count").textContent = "Path copied";
  setTimeout(() => {
    setIcon(button, "pages");
    showCount();
  }, 2000);
});

arrange();
