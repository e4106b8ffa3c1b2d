"use strict";
// The page: sections with a panel for each plan, and what happens when somebody chooses, prints or changes the theme.

const plans = REPORT.plans.map(unpacked);
const report = document.getElementById("report");
report.style.setProperty("--plans", plans.length);

/** Add a section with a panel for each plan that has something to show in it. */
function section(parent, title, said, make, name = null) {
  const panels = plans.map((plan) => {
    const content = make(plan);
    const absent = element("p", { class: "said" }, "not part of this plan");
    const heading = plans.length > 1 ? element("h3", {}, plan.name) : null;
    return { found: content !== null, panel: element("div", { class: "panel" }, heading, ...(content ?? [absent])) };
  });
  if (!panels.some((each) => each.found)) return;
  parent.append(element("section", { class: name }, element("h2", {}, title), element("p", { class: "said" }, said), element("div", { class: "plans" }, ...panels.map((each) => each.panel))));
}

function drawn(drawing) {
  if (drawing === null) return null;
  drawings.push(drawing);
  return drawing.box;
}

function lead(plan) {
  const remarks = plan.headline.changes
    .filter((change) => change.remark)
    .map((change) => element("p", { class: "remark" }, change.seconds === null ? `${change.name}: not simulated, for ${change.remark}` : `${change.name}: ${change.remark}`));
  const heading = plans.length > 1 ? element("h3", {}, plan.name) : null;
  return element("div", {}, heading, element("p", { class: "lead" }, plan.headline.sentence), ...remarks);
}

function numbers(plan) {
  const rows = plan.summary.map((row) => element("div", {},
    element("dt", { title: row.meaning || null, class: row.label.startsWith(" ") ? "inner" : null }, row.label.trim()),
    element("dd", {}, row.text)));
  return element("div", { class: "panel numbers" }, element("dl", {}, ...rows));
}

/** The numbers of several plans beside each other, a row for each that any of them has. */
function numbersOfAll() {
  const common = (label) => label.replace(/ of device \d+$/, " of the device that computes longest");
  const labels = [...new Set(plans.flatMap((plan) => plan.summary.map((row) => common(row.label))))];
  const found = (plan, label) => plan.summary.find((row) => common(row.label) === label);
  const rows = labels.map((label) => {
    const meaning = plans.map((plan) => found(plan, label)?.meaning).find(Boolean);
    const cells = plans.map((plan) => element("td", {}, found(plan, label)?.text ?? "–"));
    return element("tr", {}, element("th", { scope: "row", title: meaning ?? null }, label.trim()), ...cells);
  });
  const head = element("tr", {}, element("td"), ...plans.map((plan) => element("th", { scope: "col" }, plan.name)));
  return element("div", { class: "panel" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function timelinePanel(plan) {
  const timeline = new Timeline(plan);
  drawings.push({ draw: () => timeline.resize() });
  const used = new Set(plan.iteration.kind);
  const keys = KINDS.filter((_, kind) => used.has(kind)).map((name) => element("span", {}, element("i", { style: `background: var(--${name})` }), name === "forward" || name === "backward" ? `${name} pass` : name));
  if (plan.iteration.critical.includes(1)) keys.push(element("span", {}, element("i", { style: "background: var(--critical); height: 0.25em; vertical-align: 0.1em" }), "critical path (C: alone)"));
  const said = plan.iteration.said.map((text) => element("p", { class: "said" }, text));
  return [element("div", { class: "keys" }, ...keys), timeline.scroller, ...said];
}

function fabricPanel(plan) {
  const { name, said, interfaces, x } = plan.fabric;
  const marked = plan.links?.byOperator.said;
  const text = `${name}: ${said}; each host has ${interfaces}${marked ? `; ${marked}` : ""}`;
  return [element("p", { class: "said" }, text), x.length ? drawn(new FabricPicture(plan)) : null];
}

function trafficPanel(plan) {
  if (plan.traffic.hosts < 2) return null;
  if (plan.traffic.bytes.length === 0) return [element("p", { class: "said" }, "no host sends to another one")];
  const note = plan.traffic.byOperator ? null : element("p", { class: "said" }, "all operators together: there are too many cells to keep them apart");
  return [drawn(trafficChart(plan)), note];
}

function strategyPanel(plan) {
  const found = plan.strategy;
  if (!found) return null;
  const body = element("tbody", {});
  for (const group of found.groups) {
    const [first, ...more] = group.cells.map((text, i) => element("td", {}, found.columns[i] === "operators" ? operatorsOf(group, text) : text));
    body.append(element("tr", { "data-names": JSON.stringify(group.names) }, first, ...more));
  }
  const head = element("tr", {}, ...found.columns.map((name) => element("th", { scope: "col" }, name)));
  const legend = found.legend.map((line) => element("p", { class: "said" }, line));
  const mark = () => {
    for (const row of body.rows) {
      const names = JSON.parse(row.dataset.names);
      row.classList.toggle("holds", chosen.name !== null && names.includes(chosen.name));
      for (const button of row.querySelectorAll("button")) button.classList.toggle("marked", button.textContent === chosen.name);
    }
  };
  chosen.listeners.push(mark);
  return [element("p", { class: "said" }, found.title), element("table", {}, element("thead", {}, head), body), ...legend];
}

function runnersUpPanel(plan) {
  const tables = plan.runnersUp.map(({ title, columns, rows }) => [
    element("p", { class: "said" }, title),
    element("table", {},
      element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map((text) => element("td", {}, text)))))),
  ]);
  return tables.length ? tables.flat() : null;
}

function operatorsOf(group, text) {
  const buttons = element("div", { class: "operators" });
  const details = element("details", { ontoggle: () => {
    if (buttons.childElementCount === 0) buttons.append(...group.names.map(operatorButton));
  } }, element("summary", {}, text), buttons);
  return group.names.length === 1 ? operatorButton(group.names[0]) : details;
}

function operatorButton(name) {
  return element("button", { type: "button", class: name === chosen.name ? "marked" : null, onclick: () => chosen.select(name) }, name);
}

function memoryPanel(plan) {
  if (!plan.memory) return null;
  const note = plan.memory.said ? element("p", { class: "said" }, plan.memory.said) : null;
  return [drawn(memoryChart(plan)), note, drawn(memoryOverTime(plan))].filter(Boolean);
}

function provenancePanel(plan) {
  const rows = plan.provenance.map(([key, value]) => element("tr", {}, element("th", { scope: "row" }, key), element("td", {}, value)));
  return rows.length ? [element("table", {}, element("tbody", {}, ...rows))] : null;
}

function build() {
  report.append(element("section", {}, element("div", { class: "plans" }, ...plans.map(lead))));
  report.append(element("section", {}, plans.length > 1 ? numbersOfAll() : numbers(plans[0])));
  section(report, "One iteration", "Drag moves, Ctrl and the wheel zoom (the wheel alone once the timeline is focused), a double click shows all; a click on a slice marks its operator in all panels.", timelinePanel);
  const pair = (parent) => {
    const box = element("div", { class: plans.length > 1 ? "" : "pair" });
    parent.append(box);
    return box;
  };
  const network = pair(report);
  section(network, "Fabric", "Links by load: what they send over what they could send in one iteration.", fabricPanel);
  section(network, "Traffic", "Bytes from host to host, on a logarithmic scale; a cell without colour is a pair that sends nothing.", trafficPanel);
  section(report, "Strategy", "Operators that are cut alike. A click on an operator marks it in all panels.", strategyPanel);
  section(report, "Plans", "What the search knows beside this plan, as --plan takes it; reasons are estimates.", runnersUpPanel);
  const middle = pair(report);
  section(middle, "What bounds it", "No schedule of these tasks is faster than any of these bounds.", (plan) => [drawn(boundsChart(plan))]);
  section(middle, "Search", "The best cost so far, and the cost of what each chain stood at. A cost is of one draw of equal paths, and is more than the time where memory does not suffice; the line is the time of this plan.", (plan) => (plan.search ? [drawn(searchChart(plan))] : null));
  section(report, "Memory", "Devices when they hold the most; those that hold the same are one bar.", memoryPanel);
  section(report, "Provenance", "Components, options and versions: what is needed to repeat the plan.", provenancePanel, "long");
}

function redraw() {
  for (const drawing of drawings) drawing.draw();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  colour.theme = name;
  document.getElementById("theme").textContent = name === "dark" ? "light" : "dark";
}

/** Lay the page out for paper: light, as wide as a page, everything drawn anew; or back. */
function forPrint(printing) {
  if (printing === document.body.classList.contains("printing")) return;
  if (printing) forPrint.theme = colour.theme;
  setTheme(printing ? "light" : forPrint.theme);
  document.body.classList.toggle("printing", printing);
  redraw();
}

function control() {
  const input = document.getElementById("operator");
  const clear = document.getElementById("clear");
  const names = [...new Set(plans.flatMap((plan) => plan.operators))];
  document.getElementById("operators").append(...names.map((name) => element("option", { value: name })));
  input.addEventListener("change", () => {
    if (names.includes(input.value) && input.value !== chosen.name) chosen.select(input.value);
    else if (input.value === "" && chosen.name !== null) chosen.select(chosen.name);
  });
  clear.addEventListener("click", () => chosen.name !== null && chosen.select(chosen.name));
  document.addEventListener("keydown", (event) => event.key === "Escape" && chosen.name !== null && chosen.select(chosen.name));
  chosen.listeners.push(() => {
    input.value = chosen.name ?? "";
    clear.disabled = chosen.name === null;
    for (const timeline of stretch.timelines) timeline.draw();
    for (const drawing of drawings) if (drawing instanceof FabricPicture || drawing.marks) drawing.draw();
  });
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(colour.theme === "dark" ? "light" : "dark");
    redraw();
  });
  document.getElementById("print").addEventListener("click", () => window.print());
  window.addEventListener("beforeprint", () => forPrint(true));
  window.addEventListener("afterprint", () => forPrint(false));
  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => document.body.classList.contains("printing") || redraw(), 120);
  });
}

setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
build();
control();
redraw();
document.documentElement.dataset.ready = "yes";
