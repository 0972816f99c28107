"use strict";
// Tables: sort by a column's title, up and down; filter the trials by words.

document.documentElement.classList.add("js");

function cellValue(row, column) {
  const cell = row.cells[column];
  const value = cell.dataset.value;
  return value === undefined ? cell.textContent.trim() : value === "" ? null : Number(value);
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sortTable(table, column) {
  const titles = [...table.tHead.rows[0].cells];
  const direction = titles[column].getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const rows = [...table.tBodies[0].rows].map((row) => [cellValue(row, column), row]);
  // What was not measured stays at the end, whatever the direction.
  rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : direction * compare(a, b)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
  for (const title of titles) title.removeAttribute("aria-sort");
  titles[column].setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((title, column) => {
    title.querySelector("button").addEventListener("click", () => sortTable(table, column));
  });
}

{
  const box = document.getElementById("filter");
  const rows = [...document.querySelectorAll("#trials tbody tr")];
  const texts = new Map(rows.map((row) => [row, `${row.textContent} ${row.dataset.words ?? ""}`.toLowerCase()]));
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => texts.get(row).includes(word));
    const shown = rows.filter((row) => !row.hidden).length;
    document.getElementById("filtered").textContent = `${shown} of ${rows.length} trial${rows.length === 1 ? "" : "s"}`;
  });
}
