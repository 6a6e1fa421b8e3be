// The nearest videos of the one that is kept open, and the lists of videos to look at. It follows map_controls.js.

const nearOf = (i) => (i < 0 ? [] : data.near[i] ?? []);

const nearColor = () => (dark.matches ? "#8fb2ff" : "#2a5bc7");

// Lines to the neighbours, and rings around them; those that the legend hides have none.
function drawNear(radius) {
  const around = nearOf(kept).filter((i) => state[i] !== 0);
  if (around.length === 0) return;
  const place = (i) => [X[i] * view.scale * ratio + view.left * ratio, Y[i] * view.scale * ratio + view.top * ratio];
  context.strokeStyle = nearColor();
  context.lineWidth = 1.5 * ratio;
  context.beginPath();
  for (const i of around) {
    const [x, y] = place(i), r = radius + 2.5 * ratio;
    context.moveTo(...place(kept));
    context.lineTo(x, y);
    context.moveTo(x + r, y);
    context.arc(x, y, r, 0, 7);
  }
  context.stroke();
}

function listVideos(list, rows) {
  list.replaceChildren();
  for (const [i, note] of rows) {
    const button = element("button", names[i], element("li", "", list));
    button.type = "button";
    if (note) element("small", note, button);
    button.addEventListener("click", () => {
      goTo(i);
      canvas.scrollIntoView({ block: "nearest" }); // on narrow screens the list is below the map
    });
  }
}

function listNear() {
  const rows = nearOf(kept), shown = column !== null && column.classes.length > 0 && column.name !== "folder"; // names have it
  $("near-of").textContent = kept < 0 ? "Click a point to see its nearest videos." : `By features, to ${names[kept]}:`;
  listVideos($("near"), rows.map((i) => [i, shown ? column.classes[column.values[i]] : ""]));
}

if ($("suspects") !== null) {
  const listSuspects = () => {
    const { rows, total } = data.suspects[Number($("suspects").value)];
    $("cut").hidden = total === rows.length;
    $("cut").textContent = `The first ${rows.length} of ${total.toLocaleString("en")}; results.json has all.`;
    listVideos($("suspected"), rows);
  };
  $("suspects").addEventListener("change", listSuspects);
  listSuspects();
}
