// Charts and tiles say more when pointed at or focused; arrow keys walk along a chart's marks.

const tip = document.getElementById("tip");

function hideTip() {
  tip.hidden = true;
}

function showTip(text, box) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, (box.left + box.right - width) / 2), innerWidth - width - 8);
  const above = box.top - height - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
}

for (const tile of document.querySelectorAll(".tile")) {
  const show = () => showTip(tile.dataset.tip, tile.getBoundingClientRect());
  tile.addEventListener("pointerenter", show);
  tile.addEventListener("focus", () => { if (tile.matches(":focus-visible")) show(); });
  tile.addEventListener("pointerleave", hideTip);
  tile.addEventListener("blur", hideTip);
}

for (const svg of document.querySelectorAll(".chart svg")) {
  const marks = [...svg.querySelectorAll("use")].map((mark) => ({
    x: Number(mark.getAttribute("x")),
    y: Number(mark.getAttribute("y")),
    text: `${mark.parentElement.dataset.name}: ${mark.dataset.tip}`,
  }));
  // Line by line, as they are drawn.
  const target = svg.querySelector(".target");
  let current = -1;

  const point = (number) => {
    current = number;
    target.setAttribute("cx", marks[number].x);
    target.setAttribute("cy", marks[number].y);
    showTip(marks[number].text, target.getBoundingClientRect());
  };
  const leave = () => {
    target.setAttribute("cx", -20);
    target.setAttribute("cy", -20);
    hideTip();
  };
  svg.addEventListener("pointermove", (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const distances = marks.map((mark) => Math.hypot(mark.x - place.x, mark.y - place.y));
    const nearest = distances.indexOf(Math.min(...distances));
    if (distances[nearest] < 40) point(nearest);
    else leave();
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !marks.length) return;
    event.preventDefault();
    point((current + step + marks.length) % marks.length);
  });
}

addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
addEventListener("scroll", hideTip, { passive: true, capture: true });
