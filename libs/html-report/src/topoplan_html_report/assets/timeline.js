"use strict";
// The iteration on a canvas: slices of devices, transfers and collectives in lanes, and below them how busy links are.
// What is narrower than a pixel is drawn once for each pixel, so that the time to draw follows the pixels.

const KINDS = ["forward", "backward", "update", "barrier", "transfer", "collective"];
// Behind two batches of rectangles for each kind, faded and bright ones, that of the marks of the critical path.
const CRITICAL = 2 * KINDS.length;
const COLLECTIVES = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "join"];
const AXIS = 22;
const TALLEST = 900;

// Timelines of plans beside each other show the same stretch of time.
const stretch = { begin: 0, end: 1, whole: 1, timelines: [] };

class Timeline {
  constructor(plan) {
    this.plan = plan;
    this.data = plan.iteration;
    this.criticalOnly = false;
    this.layOut();
    stretch.whole = Math.max(stretch.whole === 1 ? 0 : stretch.whole, this.data.seconds);
    stretch.end = stretch.whole;
    stretch.timelines.push(this);
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": this.summary() });
    this.spacer = element("div");
    this.scroller = element("div", { class: "scroller" }, this.canvas, this.spacer);
    this.listen();
  }

  summary() {
    const rows = this.data.rows.length;
    return `Timeline of ${timeText(this.data.seconds)}: ${this.data.start.length} slices in ${rows} rows`;
  }

  /** Place rows and lanes below each other, and sort slices into lanes. */
  layOut() {
    const { rows, start, finish, lane } = this.data;
    const compute = rows.filter((row) => row.sort === "compute").length;
    const tall = compute <= 6 ? 18 : compute <= 20 ? 13 : compute <= 64 ? 10 : 7;
    this.lanes = [];
    this.labels = [];
    this.linkRows = [];
    let first = 0;
    let y = 0;
    const firsts = rows.map((row) => (first += row.slices) - row.slices);
    // Where devices fill more than what is seen at once, collectives and links come first.
    const order = rows.map((_, index) => index);
    const many = compute > 20;
    if (many) {
      order.sort((a, b) => (rows[b].sort === "collective") - (rows[a].sort === "collective") || a - b);
      y = this.layOutLinks(y);
    }
    for (const index of order) {
      const row = rows[index];
      first = firsts[index];
      if (row.sort !== "send") y += row.sort === "collective" ? 12 : 3;
      const height = row.sort === "compute" ? tall : row.sort === "send" ? Math.max(2.5, Math.min(6, tall / 4)) : row.lanes > 12 ? 9 : 12;
      const byLane = Array.from({ length: row.lanes }, () => []);
      for (let i = first; i < first + row.slices; i++) byLane[lane[i]].push(i);
      this.labels.push({ text: row.label, y, height: height * row.lanes, sort: row.sort });
      for (const slices of byLane) {
        const ends = new Float64Array(slices.length);
        let latest = 0;
        slices.forEach((slice, place) => (ends[place] = latest = Math.max(latest, finish[slice])));
        this.lanes.push({ y, height: height - 1, slices: Int32Array.from(slices), ends });
        y += height;
      }
    }
    if (!many) y = this.layOutLinks(y);
    this.height = y + 4;
    this.start = start;
    this.finish = finish;
  }

  /** Place the rows of links below a height, and return that below them. */
  layOutLinks(y) {
    const links = this.plan.links;
    if (!links) return y;
    this.labels.push({ text: "busiest links, 0 to 100 %", y: y + 8, height: 13, sort: "title" });
    y += 23;
    for (const row of links.rows) {
      this.labels.push({ text: row.label, y, height: 15, sort: "link" });
      this.linkRows.push({ y, height: 14, levels: row.levels });
      y += 16;
    }
    return y;
  }

  x(seconds) {
    return this.gutter + ((seconds - stretch.begin) / (stretch.end - stretch.begin)) * (this.width - this.gutter);
  }

  secondsAt(x) {
    return stretch.begin + ((x - this.gutter) / (this.width - this.gutter)) * (stretch.end - stretch.begin);
  }

  /** Fit the canvas to the panel, then draw. */
  resize() {
    const printing = document.body.classList.contains("printing");
    this.width = this.scroller.clientWidth || 800;
    this.gutter = this.width < 760 ? 130 : 200;
    this.shown = Math.min(this.height + AXIS, TALLEST);
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.shown * scale);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.shown}px`;
    this.scroller.style.height = `${this.shown}px`;
    this.spacer.style.height = `${Math.max(0, this.height + AXIS - this.shown)}px`;
    this.draw();
  }

  draw() {
    const began = performance.now();
    const scale = window.devicePixelRatio || 1;
    const pen = this.canvas.getContext("2d");
    this.top = document.body.classList.contains("printing") ? 0 : this.scroller.scrollTop;
    this.colours = Object.fromEntries([...KINDS, "critical", "ink", "quiet", "line", "panel", "none"].map((name) => [name, colour(name)]));
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = this.colours.panel;
    pen.fillRect(0, 0, this.width, this.shown);
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, this.width, this.shown - AXIS);
    pen.clip();
    pen.translate(0, AXIS - this.top);
    this.drawLabels(pen);
    pen.beginPath();
    pen.rect(this.gutter, 0, this.width - this.gutter, this.height);
    pen.clip();
    this.drawGrid(pen);
    const batches = Array.from({ length: CRITICAL + 1 }, () => []);
    const texts = [];
    for (const lane of this.lanes) {
      if (lane.y + lane.height >= this.top && lane.y <= this.top + this.shown) this.drawLane(lane, batches, texts);
    }
    this.drawBatches(pen, batches, texts);
    for (const row of this.linkRows) this.drawLink(pen, row);
    pen.restore();
    this.drawAxis(pen);
    this.milliseconds = performance.now() - began;
  }

  ticks() {
    const length = stretch.end - stretch.begin;
    const rough = length / Math.max(2, (this.width - this.gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const ticks = [];
    for (let k = Math.ceil(stretch.begin / step); k * step <= stretch.end; k++) ticks.push(k * step);
    return ticks;
  }

  drawGrid(pen) {
    pen.strokeStyle = this.colours.line;
    pen.lineWidth = 1;
    pen.globalAlpha = 0.6;
    pen.beginPath();
    for (const tick of this.ticks()) {
      const x = Math.round(this.x(tick)) + 0.5;
      pen.moveTo(x, 0);
      pen.lineTo(x, this.height);
    }
    pen.stroke();
    pen.globalAlpha = 1;
  }

  drawAxis(pen) {
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = this.colours.quiet;
    pen.textBaseline = "middle";
    for (const tick of this.ticks()) {
      const x = this.x(tick);
      const text = timeText(tick);
      const half = pen.measureText(text).width / 2;
      pen.textAlign = "left";
      pen.fillText(text, Math.min(Math.max(x - half, this.gutter), this.width - 2 * half - 2), AXIS / 2);
    }
  }

  drawLabels(pen) {
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    let below = -99;
    for (const label of this.labels) {
      const size = label.sort === "send" ? 9 : 11;
      const middle = label.y + Math.min(label.height, label.sort === "collective" ? 14 : label.height) / 2;
      if (middle - below < size) continue;
      if (label.sort === "send" && label.height < 9) continue;
      pen.font = `${label.sort === "title" ? "italic " : ""}${size}px system-ui, sans-serif`;
      pen.fillStyle = label.sort === "compute" || label.sort === "collective" ? this.colours.ink : this.colours.quiet;
      pen.fillText(fitted(pen, label.text, this.gutter - 16), this.gutter - 8, middle);
      below = middle;
    }
  }

  /** Collect the slices of a lane; one that ends left of what is drawn already, in the same pixel, is merged with it. */
  drawLane(lane, batches, texts) {
    const { start, finish, width } = this;
    const { slices, ends, y, height } = lane;
    const { kind, operator, critical } = this.data;
    const selected = chosen.in(this.plan);
    const perSecond = (width - this.gutter) / (stretch.end - stretch.begin);
    const shift = this.gutter - stretch.begin * perSecond;
    const fading = selected !== -1 || this.criticalOnly;
    let painted = -1;
    let marked = -1;
    for (let place = firstEndingAfter(ends, stretch.begin); place < slices.length; place++) {
      const slice = slices[place];
      if (start[slice] > stretch.end) break;
      let left = start[slice] * perSecond + shift;
      let right = finish[slice] * perSecond + shift;
      if (left < this.gutter) left = this.gutter;
      if (right > width) right = width;
      const bright = !fading || (selected === -1 ? critical[slice] === 1 : operator[slice] === selected);
      if (right <= painted && (!fading || !bright || right <= marked)) continue;
      if (right < left + 1) right = left + 1;
      const length = right - left - (right - left > 3 ? 0.6 : 0);
      batches[kind[slice] * 2 + (bright ? 1 : 0)].push(left, y, length, height);
      painted = Math.ceil(right - 1e-6);
      if (bright) marked = painted;
      if (critical[slice] === 1 && !this.criticalOnly && bright) {
        const strip = Math.min(2.5, height / 3);
        batches[CRITICAL].push(left, y + height - strip, length, strip);
      }
      if (height >= 10 && bright && right - left > 26) texts.push([slice, left + 3, y + height / 2, right - left - 6, height]);
    }
  }

  /** Draw what `drawLane` collected, one colour after the other: changing colours takes longer than a rectangle. */
  drawBatches(pen, batches, texts) {
    batches.forEach((batch, code) => {
      pen.fillStyle = code === CRITICAL ? this.colours.critical : this.colours[KINDS[code >> 1]];
      pen.globalAlpha = code === CRITICAL || code & 1 ? 1 : 0.16;
      for (let i = 0; i < batch.length; i += 4) pen.fillRect(batch[i], batch[i + 1], batch[i + 2], batch[i + 3]);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = "#ffffff";
    pen.textAlign = "left";
    for (const [slice, x, y, room, height] of texts) {
      pen.font = `${Math.min(11, height - 1)}px system-ui, sans-serif`;
      pen.fillText(fitted(pen, this.plan.operators[this.data.operator[slice]] ?? "", room), x, y);
    }
  }

  drawLink(pen, row) {
    const bins = row.levels.length;
    const each = this.data.seconds / bins;
    const selected = chosen.in(this.plan) !== -1;
    pen.fillStyle = this.colours.none;
    pen.fillRect(this.x(0), row.y, this.x(this.data.seconds) - this.x(0), row.height);
    pen.globalAlpha = selected ? 0.35 : 1;
    for (let bin = 0; bin < bins; bin++) {
      const share = row.levels[bin] / 255;
      if (share === 0) continue;
      const left = Math.floor(this.x(bin * each));
      pen.fillStyle = (this.shades ??= {})[`${colour.theme}${row.levels[bin]}`] ??= loadColour(share);
      pen.fillRect(left, row.y + row.height * (1 - share), Math.max(1, Math.floor(this.x((bin + 1) * each)) - left), row.height * share);
    }
    pen.globalAlpha = 1;
  }

  sliceAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    const y = event.clientY - box.top - AXIS + this.top;
    if (x < this.gutter || event.clientY - box.top < AXIS) return -1;
    const lane = this.lanes.find((each) => y >= each.y && y <= each.y + each.height);
    if (!lane) return -1;
    const room = ((stretch.end - stretch.begin) / (this.width - this.gutter)) * 2;
    const seconds = this.secondsAt(x);
    for (let place = firstEndingAfter(lane.ends, seconds - room); place < lane.slices.length; place++) {
      const slice = lane.slices[place];
      if (this.start[slice] > seconds + room) break;
      if (this.finish[slice] >= seconds - room) return slice;
    }
    return -1;
  }

  describe(slice) {
    const data = this.data;
    const name = this.plan.operators[data.operator[slice]];
    const kind = data.kind[slice] === 5 ? COLLECTIVES[data.collective[slice]] : KINDS[data.kind[slice]];
    const lines = [`${kind}${name === undefined ? "" : ` of ${name}`}`];
    lines.push(`${timeText(this.start[slice])} to ${timeText(this.finish[slice])}: ${timeText(this.finish[slice] - this.start[slice])}`);
    if (data.tasks[slice] > 1) {
      lines.push(`${data.tasks[slice]} tasks drawn as one${name === undefined ? "" : "; the longest is of this operator"}`);
      lines.push(`${bytesText(data.bytes[slice])} together`);
    } else if (data.kind[slice] === 4) {
      lines.push(`${bytesText(data.bytes[slice])} from device ${data.from[slice]} to device ${data.to[slice]}`);
    }
    if (data.kind[slice] === 5 && data.tasks[slice] === 1) lines.push(`${bytesText(data.bytes[slice])}, ${data.members[slice]} devices`);
    if (data.tasks[slice] === 1 && data.microBatch && data.microBatch[slice] >= 0) lines.push(`micro-batch ${data.microBatch[slice]}`);
    if (data.count[slice] > 1) lines.push(`${data.count[slice]} of them, equal`);
    if (data.critical[slice]) lines.push("on the critical path");
    return lines.join("\n");
  }

  listen() {
    let grip = null;
    this.scroller.addEventListener("scroll", () => this.draw());
    this.canvas.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, begin: stretch.begin, end: stretch.end, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (grip && Math.abs(event.clientX - grip.x) > 3) {
        grip.moved = true;
        const shift = ((grip.x - event.clientX) / (this.width - this.gutter)) * (grip.end - grip.begin);
        showStretch(grip.begin + shift, grip.end + shift);
        return;
      }
      const slice = this.sliceAt(event);
      if (slice < 0) tooltip.hide();
      else tooltip.show(event, this.describe(slice));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const slice = grip && !grip.moved ? this.sliceAt(event) : -1;
      grip = null;
      if (slice >= 0) chosen.select(this.plan.operators[this.data.operator[slice]] ?? null);
    });
    this.canvas.addEventListener("pointerleave", () => tooltip.hide());
    this.canvas.addEventListener("dblclick", () => showStretch(0, stretch.whole));
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
      event.preventDefault();
      const length = stretch.end - stretch.begin;
      if (event.shiftKey) showStretch(stretch.begin + length * 0.001 * event.deltaY, stretch.end + length * 0.001 * event.deltaY);
      else zoom(1.0015 ** event.deltaY, this.secondsAt(event.clientX - this.canvas.getBoundingClientRect().left));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const length = stretch.end - stretch.begin;
    const actions = {
      ArrowLeft: () => showStretch(stretch.begin - length / 10, stretch.end - length / 10),
      ArrowRight: () => showStretch(stretch.begin + length / 10, stretch.end + length / 10),
      ArrowUp: () => this.scroller.scrollBy(0, -40),
      ArrowDown: () => this.scroller.scrollBy(0, 40),
      "+": () => zoom(1 / 1.5),
      "=": () => zoom(1 / 1.5),
      "-": () => zoom(1.5),
      0: () => showStretch(0, stretch.whole),
      Home: () => showStretch(0, stretch.whole),
      c: () => {
        this.criticalOnly = !this.criticalOnly;
        this.draw();
      },
    };
    const action = actions[event.key] ?? actions[event.key.toLowerCase()];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  }
}

/** The first place whose latest end so far is after a time: slices before it end earlier. */
function firstEndingAfter(ends, seconds) {
  let low = 0;
  let high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] < seconds) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Shorten text to a width in pixels. */
function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let length = Math.floor((text.length * width) / Math.max(1, pen.measureText(text).width));
  while (length > 0 && pen.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}

function zoom(factor, around = (stretch.begin + stretch.end) / 2) {
  showStretch(around - (around - stretch.begin) * factor, around + (stretch.end - around) * factor);
}

/** Show a stretch of time in all timelines, no longer than the whole iteration and no shorter than a nanosecond. */
function showStretch(begin, end) {
  const length = Math.min(Math.max(end - begin, 1e-9), stretch.whole);
  stretch.begin = Math.min(Math.max(0, begin), stretch.whole - length);
  stretch.end = stretch.begin + length;
  for (const timeline of stretch.timelines) timeline.draw();
}
