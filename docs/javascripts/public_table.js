// Sorts and filters the public table. Without JavaScript, the table is complete and sorted by its first column.
// The site replaces pages without loading them, and tells that by `document$`.
document$.subscribe(() => document.querySelectorAll(".public-table table").forEach(addControls));

function addControls(table) {
  const body = table.tBodies[0];
  const filter = document.createElement("input");
  filter.type = "search";
  filter.placeholder = "Filter, such as: resnet MPS";
  filter.setAttribute("aria-label", "Filter the rows of this table");
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  table.before(filter);
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
      const key = (row) => row.cells[place].textContent;
      const rows = [...body.rows].sort((a, b) => sign * key(a).localeCompare(key(b), "en", { numeric: true }));
      body.append(...rows);
    });
  });
}
