"use strict";
// The fabric as a picture: hosts and switches where the layout put them, lines in the colour of their load.

/** Sizes of texts in the units of the picture, as the browser's own font has them. */
const lettering = {
  size: 2.4, // as the style sheet has it
  pen: null,
  measured(text) {
    if (this.pen === null) {
      this.pen = document.createElement("canvas").getContext("2d");
      this.pen.font = `100px ${getComputedStyle(document.body).fontFamily}`;
    }
    return this.pen.measureText(text);
  },
  width(text) {
    return (this.measured(text).width * this.size) / 100;
  },
  get height() {
    const { fontBoundingBoxAscent, fontBoundingBoxDescent } = this.measured("0");
    return ((fontBoundingBoxAscent + fontBoundingBoxDescent) * 1.1 * this.size) / 100; // browsers round it to pixels
  },
  /** The start of a text that is so wide at most. */
  fitted(text, room) {
    if (this.width(text) <= room) return text;
    let kept = text;
    while (kept && this.width(`${kept}…`) > room) kept = kept.slice(0, -1);
    return `${kept}…`;
  },
};

/** Whether two labels are beside or below each other, with a gap between those in a row. */
function apart(label, other, gap) {
  return Math.abs(label.x - other.x) >= (label.width + other.width) / 2 + gap || Math.abs(label.y - other.y) >= label.height;
}

/** Most room for names of rows left of a picture of bars. */
const LEFT = 44;

class FabricPicture {
  constructor(plan) {
    this.plan = plan;
    this.data = plan.fabric;
    this.bars = this.data.layout === "bars";
    this.wide = this.data.layout === "tiers" || this.bars;
    this.size = this.wide ? [160, this.bars ? 100 : 78] : [100, 100];
    this.left = this.bars ? Math.min(LEFT, Math.max(...this.data.rows.name.map((name) => lettering.width(name))) + 5) : 0;
    this.box = element("div", { class: "picture" });
  }

  /** Where a node stands, in the units of the picture. */
  place(node) {
    const [width, height] = this.size;
    const side = ["circle", "around"].includes(this.data.layout) ? 9 : 7;
    const left = this.bars ? this.left : side;
    return [left + this.data.x[node] * (width - left - side), side + this.data.y[node] * (height - 2 * side)];
  }

  /** Ends of the bar of a switch, in the units of the picture. */
  spanOf(node) {
    const width = this.size[0] - this.left - 7;
    const reach = Math.min(1.1, (0.3 * width) / this.data.hosts); // bars of units beside each other do not touch
    return [this.left + this.data.low[node] * width - reach, this.left + this.data.high[node] * width + reach];
  }

  /** Bars of switches, and the lines of what hangs on them: up to the highest bar that each has a link to. */
  frame() {
    const { data } = this;
    const highest = new Map();
    for (let line = 0; line < data.from.length; line++) {
      const ends = [data.from[line], data.to[line]].sort((a, b) => data.y[b] - data.y[a]);
      highest.set(ends[0], Math.min(highest.get(ends[0]) ?? 1, data.y[ends[1]]));
    }
    const stroke = { svg: true, stroke: colour("line"), "stroke-width": 0.18, fill: "none" };
    const made = [];
    for (const [node, y] of highest) {
      const [x, bottom] = this.place(node);
      made.push(element("path", { ...stroke, d: `M${x.toFixed(2)} ${bottom.toFixed(2)}V${(7 + y * (this.size[1] - 14)).toFixed(2)}` }));
    }
    const bars = new Map(); // switches that are one bar, by its path
    for (let node = data.hosts; node < data.hosts + data.switches; node++) {
      if (data.x[node] < 0) continue;
      const [low, high] = this.spanOf(node);
      const d = `M${low.toFixed(2)} ${this.place(node)[1].toFixed(2)}H${high.toFixed(2)}`;
      bars.set(d, [...(bars.get(d) ?? []), this.nameOf(node)]);
    }
    for (const [d, names] of bars) {
      const text = names.length === 1 ? names[0] : `${names[0]} … ${names.at(-1)} (${names.length})`;
      made.push(element("path", { ...stroke, stroke: colour("accent"), "stroke-width": 0.5, d }, element("title", { svg: true }, text)));
    }
    let last = Infinity;
    data.rows.y.forEach((height, row) => {
      const y = 7 + height * (this.size[1] - 14);
      if (Math.abs(last - y) < lettering.height) return;
      last = y;
      made.push(element("text", { svg: true, x: this.left - 2.5, y, style: "text-anchor: end; dominant-baseline: middle" }, lettering.fitted(data.rows.name[row], this.left - 3)));
    });
    return made;
  }

  /** The point where a host or switch crosses the bar of a switch above it. */
  crossing(line) {
    const ends = [this.data.from[line], this.data.to[line]].sort((a, b) => this.data.y[b] - this.data.y[a]);
    return [this.place(ends[0])[0], this.place(ends[1])[1]];
  }

  draw() {
    const { data } = this;
    const [width, height] = this.size;
    const lines = element("g", { svg: true, fill: "none" });
    const carried = this.carried();
    const crowd = Math.min(1, 90 / Math.max(1, data.from.length));
    this.spans = this.spansOf();
    for (let line = 0; line < data.from.length; line++) {
      const load = data.load[line];
      const fades = carried !== null && !carried.has(line);
      if (this.bars) {
        const [cx, cy] = this.crossing(line);
        lines.append(element("circle", {
          svg: true,
          cx: cx.toFixed(2),
          cy: cy.toFixed(2),
          r: Math.max(0.35, Math.min(1.1, 45 / this.data.hosts)) * (carried?.has(line) ? 1.5 : 1),
          fill: load > 0 ? loadColour(load) : colour("line"),
          opacity: fades ? 0.1 : 1,
          "data-line": line,
        }));
        continue;
      }
      lines.append(element("path", {
        svg: true,
        d: this.path(line),
        stroke: load > 0 ? loadColour(load) : colour("line"),
        "stroke-width": (load > 0 ? 0.22 + 0.55 * load : 0.2) * (0.55 + 0.45 * crowd) * (carried?.has(line) ? 1.8 : 1),
        "stroke-dasharray": load > 0 ? null : "0.8 0.8",
        "stroke-opacity": fades ? 0.07 : Math.min(1, 0.45 + 0.55 * crowd + 0.3 * load),
        "data-line": line,
      }));
    }
    lines.addEventListener("pointermove", (event) => {
      const line = event.target.dataset.line;
      if (line !== undefined) tooltip.show(event, this.describe(Number(line)));
    });
    lines.addEventListener("pointerleave", () => tooltip.hide());
    const nodes = this.nodes();
    const margin = this.margin;
    const label = `${data.name}: ${data.said}`;
    this.box.replaceChildren(
      element("svg", { svg: true, viewBox: `${-margin} 0 ${width + 2 * margin} ${height}`, role: "img", "aria-label": label }, ...(this.bars ? this.frame() : []), lines, ...nodes),
      this.legend(),
    );
  }

  /** The lines that carry bytes of the chosen operator; null where none is chosen, or nobody recorded it. */
  carried() {
    const operator = chosen.in(this.plan);
    const rows = this.plan.links?.byOperator;
    if (operator === -1 || !rows) return null;
    const found = new Set();
    for (let i = 0; i < rows.operator.length; i++) if (rows.operator[i] === operator) found.add(rows.line[i]);
    return found;
  }

  nameOf(node) {
    if (this.data.names.length) return this.data.names[node];
    return node < this.data.hosts ? `host ${node}` : `switch ${node - this.data.hosts}`;
  }

  describe(line) {
    const { data } = this;
    const gbps = digits((data.bandwidth[line] * 8e-9) / 2);
    return `${this.nameOf(data.from[line])} – ${this.nameOf(data.to[line])}\n${percent(data.load[line])} of the iteration, ${gbps} Gbps each way`;
  }

  /** How far apart hosts on a circle are that a line joins, each distance with its rank: near ones bow inwards less. */
  spansOf() {
    const count = this.data.hosts;
    const spans = new Set();
    for (let line = 0; line < this.data.from.length; line++) {
      const step = Math.abs(this.data.from[line] - this.data.to[line]);
      spans.add(Math.min(step, count - step));
    }
    return new Map([...spans].sort((a, b) => a - b).map((span, rank) => [span, rank]));
  }

  /** The way of a line: straight, but on a circle and a grid bent so that lines on top of each other come apart. */
  path(line) {
    const [from, to] = [this.data.from[line], this.data.to[line]];
    const [ax, ay] = this.place(from);
    const [bx, by] = this.place(to);
    const start = `M${ax.toFixed(2)} ${ay.toFixed(2)}`;
    if (this.data.layout === "grid" && this.wraps(from, to)) {
      const [dx, dy] = [bx - ax, by - ay];
      const length = Math.hypot(dx, dy);
      const bow = Math.min(Math.max(0.09 * length, 1.2), 0.3 * length) / length;
      const side = dx > 0 || (dx === 0 && dy > 0) ? bow : -bow; // up, and to the right
      return `${start}Q${((ax + bx) / 2 + dy * side).toFixed(2)} ${((ay + by) / 2 - dx * side).toFixed(2)} ${bx.toFixed(2)} ${by.toFixed(2)}`;
    }
    if (this.data.layout !== "circle" || this.data.hosts < 3) return `${start}L${bx.toFixed(2)} ${by.toFixed(2)}`;
    const count = this.data.hosts;
    const step = Math.abs(from - to);
    const span = Math.min(step, count - step);
    const straight = Math.cos((Math.PI * span) / count);
    const bowed = this.spans.size <= 8 ? 1 - 0.17 * this.spans.get(span) : 1;
    const depth = span === 1 && this.spans.size > 1 ? 1 : Math.min(straight, bowed);
    const middle = (from + to) / 2 + (step > count / 2 ? count / 2 : 0);
    const angle = (2 * Math.PI * middle) / count;
    // A curve comes half as near to its handle as its ends are away from it.
    const reach = 41 * (2 * depth - straight);
    const [hx, hy] = [50 + reach * Math.sin(angle), 50 - reach * Math.cos(angle)];
    return `${start}Q${hx.toFixed(2)} ${hy.toFixed(2)} ${bx.toFixed(2)} ${by.toFixed(2)}`;
  }

  /** Whether the hosts of a grid that a line joins are no neighbours along one axis. */
  wraps(from, to) {
    let apart = 0;
    for (const side of [...this.data.sides].reverse()) {
      apart += Math.abs((from % side) - (to % side));
      [from, to] = [Math.floor(from / side), Math.floor(to / side)];
    }
    return apart > 1;
  }

  /** How many switches the fullest of the tiers has. */
  mostOfTier() {
    const counts = new Map();
    const { data } = this;
    for (let node = data.hosts; node < data.hosts + data.switches; node++) {
      if (data.x[node] >= 0) counts.set(data.y[node], (counts.get(data.y[node]) ?? 0) + 1);
    }
    return Math.max(1, ...counts.values());
  }

  nodes() {
    const { data } = this;
    const all = data.hosts + data.switches;
    const radius = this.wide ? Math.min(1.6, 50 / data.hosts) : Math.min(1.7, 60 / data.hosts);
    const scale = Math.min(1, this.wide ? 42 / this.mostOfTier() : 45 / Math.max(1, data.switches));
    const made = [];
    const labels = [];
    const gap = 0.6 * lettering.width("0");
    for (let node = 0; node < all; node++) {
      if (data.x[node] < 0) continue;
      const [x, y] = this.place(node);
      const host = node < data.hosts;
      if (this.bars && !host) continue;
      const title = element("title", { svg: true }, this.nameOf(node));
      made.push(host
        ? element("circle", { svg: true, cx: x, cy: y, r: radius, fill: colour("ink") }, title)
        : element("rect", { svg: true, x: x - 1.3 * scale, y: y - 0.9 * scale, width: 2.6 * scale, height: 1.8 * scale, rx: 0.4 * scale, fill: colour("accent") }, title));
      if (!host) continue;
      const label = this.labelOf(node, x, y, radius);
      if (labels.every((other) => apart(label, other, gap)) && !this.covers(label, node, radius)) labels.push(label);
    }
    this.margin = Math.max(0, ...labels.map(({ x, width }) => Math.max(width / 2 - x, x + width / 2 - this.size[0]) + gap));
    return [...made, ...labels.map(({ x, y, text }) => element("text", { svg: true, x: x.toFixed(2), y: y.toFixed(2) }, text))];
  }

  /** Whether the label of a host in a grid lies on another host. */
  covers(label, own, radius) {
    if (this.data.layout !== "grid") return false;
    for (let node = 0; node < this.data.hosts; node++) {
      const [x, y] = this.place(node);
      if (node !== own && Math.abs(x - label.x) < label.width / 2 + radius && Math.abs(y - label.y) < label.height / 2 + radius) return true;
    }
    return false;
  }

  /** The name of a host and the middle of its box, which touches neither the host nor, on a grid, lines of neighbours and curves. */
  labelOf(node, x, y, radius) {
    const text = this.shortName(node);
    const [width, height] = [lettering.width(text), lettering.height];
    const away = radius + 0.6;
    const { layout, hosts } = this.data;
    if (layout === "grid") return { text, width, height, x: x - away - width / 2, y: y + away + height / 2 };
    if (layout !== "circle" && layout !== "around") return { text, width, height, x, y: y + away + height / 2 };
    const angle = layout === "circle" ? (2 * Math.PI * node) / hosts : Math.atan2(x - 50, 50 - y);
    const [across, up] = [Math.sin(angle), Math.cos(angle)];
    const reach = away + (Math.abs(across) * width + Math.abs(up) * height) / 2;
    return { text, width, height, x: x + reach * across, y: y - reach * up };
  }

  /** A number, or the start of a name. */
  shortName(node) {
    return this.data.names.length ? this.data.names[node].slice(0, 12) : `${node}`;
  }

  legend() {
    const { least, mean, most } = this.data.loads;
    const found = most === undefined ? "" : `Links here: ${percent(least)} to ${percent(most)}, on average ${percent(mean)}.`;
    const meaning = `100 % = a link sends at its full bandwidth for the whole iteration (${timeText(this.plan.iteration.seconds)}). ${found}`;
    return element("div", { class: "scale" }, element("b", {}, "0 %"), element("span", { class: "ramp" }), element("b", {}, "100 %"), element("span", {}, meaning));
  }
}
