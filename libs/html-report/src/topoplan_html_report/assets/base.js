"use strict";
// What all panels share: the data, the numbers as people write them, elements, colours, and which operator is chosen.

const REPORT = JSON.parse(document.getElementById("data").textContent);

/** Return a packed column as a typed array; its bytes are little-endian, as on every machine that runs a browser. */
function column(packed) {
  const text = atob(packed.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const arrays = { Float64Array, Float32Array, Int32Array, Int16Array, Uint8Array };
  return new arrays[packed.type](bytes.buffer);
}

/** Replace every packed column in a value by its typed array. */
function unpacked(value) {
  if (value === null || typeof value !== "object") return value;
  if (typeof value.base64 === "string") return column(value);
  if (Array.isArray(value)) return value.map(unpacked);
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, unpacked(part)]));
}

function digits(value, count = 4) {
  return Number(value.toPrecision(count)).toLocaleString("en-US", { maximumFractionDigits: 9 });
}

function timeText(seconds) {
  const size = Math.abs(seconds);
  if (size === 0) return "0 ms";
  if (size >= 10) return `${digits(seconds)} s`;
  if (size >= 1e-3) return `${digits(seconds * 1e3)} ms`;
  if (size >= 1e-6) return `${digits(seconds * 1e6)} µs`;
  return `${digits(seconds * 1e9)} ns`;
}

function bytesText(bytes) {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= size) return `${digits(bytes / size, 3)} ${unit}`;
  }
  return `${digits(bytes, 3)} B`;
}

/** Bytes that a device holds, in the units and digits of the table. */
function sizeText(bytes) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20]]) if (bytes >= size / 10) return `${(bytes / size).toFixed(1)} ${unit}`;
  return `${(bytes / 2 ** 10).toFixed(1)} KiB`;
}

function percent(share) {
  return `${digits(share * 100, 3)} %`;
}

/** Make an element; text among its children is text, never markup. */
function element(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "circle", "rect", "text", "g", "title"].includes(name) && attributes.svg;
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "svg") continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** The colours of the present theme, as the style sheet has them. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function mixed(low, high, share) {
  const parts = [low, high].map((text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
  const sum = parts[0].map((value, i) => Math.round(value + (parts[1][i] - value) * share));
  return `#${sum.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** The colour of a link's load, on a scale from 0 to 1 that is the same in every report. */
function loadColour(load) {
  const share = Math.min(1, Math.max(0, load));
  const [low, middle, high] = ["load-low", "load-middle", "load-high"].map(colour);
  return share < 0.5 ? mixed(low, middle, share * 2) : mixed(middle, high, share * 2 - 1);
}

// The chosen operator, by name, so that plans beside each other mark the same one.
const chosen = {
  name: null,
  listeners: [],
  select(name) {
    this.name = name === this.name ? null : name;
    for (const listener of this.listeners) listener();
  },
  /** The number of the chosen operator in a plan; -1 where none is chosen, -2 where this plan has no such one. */
  in(plan) {
    if (this.name === null) return -1;
    const number = plan.operators.indexOf(this.name);
    return number < 0 ? -2 : number;
  },
};

const tooltip = {
  box: document.getElementById("tooltip"),
  show(event, text) {
    this.box.textContent = text;
    this.box.hidden = false;
    const x = Math.min(event.clientX + 14, window.innerWidth - this.box.offsetWidth - 8);
    const y = event.clientY + 16 + this.box.offsetHeight > window.innerHeight
      ? event.clientY - this.box.offsetHeight - 10
      : event.clientY + 16;
    this.box.style.left = `${Math.max(4, x)}px`;
    this.box.style.top = `${Math.max(4, y)}px`;
  },
  hide() {
    this.box.hidden = true;
  },
};

// Everything that has to be drawn again when the theme, the width or the chosen operator changes.
const drawings = [];
