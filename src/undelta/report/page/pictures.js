// Pictures: the slider through the iterates, and the enlarged view.

const data = JSON.parse(document.getElementById("data").textContent);

function showTile(svg, sheet, index, frame) {
  const [width, height, right, down] = data.sheets[sheet];
  svg.querySelector("use").setAttribute("href", `#${sheet}`);
  svg.setAttribute("viewBox", `${index * right} ${frame * down} ${width} ${height}`);
}

// What an attack had at an iteration: its last picture until then, or its result.
function momentAt(row, iteration) {
  let frame = -1;
  row.frames.forEach(([step], number) => { if (step <= iteration) frame = number; });
  if (iteration === Infinity || frame < 0 || (row.iterations !== null && iteration >= row.iterations)) {
    return { sheet: row.final, frame: 0, when: row.end, text: row.result };
  }
  const [step, psnr] = row.frames[frame];
  const measured = psnr === null ? "PSNR n/a" : `PSNR ${psnr.toFixed(2)} dB`;
  return { sheet: row.iterates, frame, when: `iteration ${step}`, text: `iteration ${step}: ${measured}` };
}

function showIteration(grid, iteration) {
  for (const tiles of grid.querySelectorAll("[data-row]")) {
    const moment = momentAt(data.rows[tiles.dataset.row], iteration);
    tiles.moment = moment;
    for (const tile of tiles.children) {
      showTile(tile.querySelector("svg"), moment.sheet, Number(tile.dataset.index), moment.frame);
    }
    document.getElementById(`${tiles.dataset.row}-state`).textContent = moment.text;
  }
}

for (const grid of document.querySelectorAll(".grid")) {
  const slider = grid.querySelector("input[type=range]");
  showIteration(grid, Infinity);
  if (!slider) continue;
  const positions = slider.dataset.positions.split(" ").map(Number);
  const output = grid.querySelector("output");
  const play = grid.querySelector(".play");
  let timer = 0;

  const move = () => {
    const last = Number(slider.value) === positions.length - 1;
    const iteration = positions[Number(slider.value)];
    showIteration(grid, last ? Infinity : iteration);
    output.textContent = last ? "result" : `iteration ${iteration}`;
    slider.setAttribute("aria-valuetext", output.textContent);
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  };
  slider.addEventListener("input", () => { stop(); move(); });
  play.addEventListener("click", () => {
    if (timer) return stop();
    play.textContent = "Stop";
    slider.value = 0;
    move();
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      move();
      if (Number(slider.value) === positions.length - 1) stop();
    }, 180);
  });
  move();
}

{
  const viewer = document.getElementById("viewer");
  const part = (name) => document.getElementById(`viewer-${name}`);
  let current = null;

  const show = (tile) => {
    const grid = tile.closest(".grid");
    const tiles = tile.parentElement;
    const index = Number(tile.dataset.index);
    const row = data.rows[tiles.dataset.row];
    const size = tile.querySelector("svg");
    for (const svg of [part("original"), part("reconstruction")]) {
      svg.setAttribute("width", size.getAttribute("width"));
      svg.setAttribute("height", size.getAttribute("height"));
    }
    current = tile;
    viewer.classList.toggle("pixelated", grid.classList.contains("pixelated"));
    const originals = grid.querySelector("[data-originals]");
    part("truth").hidden = !originals;
    if (originals) showTile(part("original"), originals.dataset.originals, index, 0);
    part("guess").hidden = !row;
    part("title").textContent = row ? `${row.label}, image ${tile.dataset.number}` : `Private original ${tile.dataset.number}`;
    part("tip").textContent = tile.dataset.tip;
    if (row) {
      const moment = tiles.moment;
      showTile(part("reconstruction"), moment.sheet, index, moment.frame);
      part("state").textContent = moment.when;
    }
  };

  for (const tile of document.querySelectorAll(".tile")) {
    tile.addEventListener("click", () => { hideTip(); show(tile); viewer.showModal(); });
  }
  part("close").addEventListener("click", () => viewer.close());
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
  viewer.addEventListener("close", () => current.focus());
  viewer.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
    if (!step || !current[step]) return;
    event.preventDefault();
    show(current[step]);
  });
}
