"use strict";
// The panels that Apache ECharts draws: traffic, search, bounds, memory.  Texts are drawn on a canvas or set as rich
// text, never as markup.

const PURPOSE_COLOURS = ["#0072b2", "#56b4e9", "#cc79a7", "#e69f00", "#999999"];

class Chart {
  /** A chart of a height in pixels; `options` returns what ECharts is to draw, given the width. */
  constructor(height, label, options) {
    this.height = height;
    this.options = options;
    this.box = element("div", { class: "chart", role: "img", "aria-label": label });
    this.shown = null;
  }

  draw() {
    const width = this.box.clientWidth || 400;
    const options = this.options(width);
    const height = options.height ?? this.height;
    delete options.height;
    this.box.style.height = `${height}px`;
    if (this.shown) this.shown.dispose();
    this.box.replaceChildren();
    this.shown = echarts.init(this.box, null, { renderer: "canvas", width, height });
    this.shown.setOption({
      animation: false,
      textStyle: { fontFamily: "system-ui, sans-serif", color: colour("ink") },
      ...options,
    });
    if (document.body.classList.contains("printing")) this.flatten(width, height);
  }

  /** Make one picture of the chart, for paper: of canvases on top of each other, as ECharts has them, one is printed. */
  flatten(width, height) {
    const picture = this.shown.renderToCanvas({ pixelRatio: 2, backgroundColor: colour("panel") });
    picture.style.width = `${width}px`;
    picture.style.height = `${height}px`;
    this.shown.dispose();
    this.shown = null;
    this.box.replaceChildren(picture);
  }
}

function plainTooltip(formatter) {
  return {
    renderMode: "richText",
    confine: true,
    backgroundColor: colour("ground"),
    borderColor: colour("line"),
    textStyle: { color: colour("ink"), fontSize: 12 },
    formatter,
  };
}

function axis(more = {}) {
  return {
    axisLine: { lineStyle: { color: colour("line") } },
    axisLabel: { color: colour("quiet"), fontSize: 11, hideOverlap: true },
    splitLine: { lineStyle: { color: colour("line"), opacity: 0.6 } },
    nameTextStyle: { color: colour("quiet"), fontSize: 11 },
    ...more,
  };
}

function trafficChart(plan) {
  const data = plan.traffic;
  const most = data.side;
  const label = `Bytes between ${data.hosts} hosts`;
  const chart = new Chart(400, label, (width) => {
    const cells = trafficCells(plan);
    const logs = cells.map((cell) => cell[2]);
    const low = logs.length ? Math.floor(Math.min(...logs)) : 0;
    const high = Math.max(low + 1, logs.length ? Math.ceil(Math.max(...logs)) : 1);
    const narrow = width < 430;
    const side = Math.max(140, Math.min(width - (narrow ? 56 : 150), 460, most * 60));
    const every = 2 ** Math.max(0, Math.ceil(Math.log2(most / 16)));
    const names = { color: colour("quiet"), fontSize: 10, interval: (cell) => cell % every === 0, formatter: (cell) => Number(cell) * data.hostsPerCell };
    const hostText = (cell) => hostsOfCell(data, cell);
    return {
      height: side + (narrow ? 92 : 46),
      grid: { left: 44, top: 6, width: side, height: side, show: true, backgroundColor: colour("none"), borderColor: colour("line") },
      xAxis: axis({ type: "category", data: range(most), name: "to host", nameLocation: "middle", nameGap: 24, axisTick: { show: false }, splitLine: { show: false }, axisLabel: names }),
      yAxis: axis({ type: "category", data: range(most), inverse: true, name: "from host", nameLocation: "middle", nameGap: 30, axisTick: { show: false }, splitLine: { show: false }, axisLabel: names }),
      visualMap: {
        type: "continuous",
        min: low,
        max: high,
        dimension: 2,
        calculable: false,
        ...(narrow ? { orient: "horizontal", left: "center", bottom: 0 } : { right: 0, top: 10 }),
        itemHeight: Math.min(160, side * 0.6),
        itemWidth: 12,
        text: [bytesText(10 ** high), bytesText(10 ** low)],
        textStyle: { color: colour("quiet"), fontSize: 11 },
        inRange: { color: [colour("traffic-low"), colour("traffic-high")] },
        hoverLink: false,
      },
      tooltip: plainTooltip((at) => `${hostText(at.data[1])} to ${hostText(at.data[0])}\n${bytesText(10 ** at.data[2])}`),
      series: [{ type: "heatmap", data: cells, progressive: 0, itemStyle: { borderWidth: most <= 32 ? 1 : 0, borderColor: colour("panel") }, emphasis: { disabled: true } }],
    };
  });
  chart.marks = true;
  return chart;
}

function hostsOfCell(data, cell) {
  if (data.hostsPerCell === 1) return `host ${cell}`;
  return `hosts ${cell * data.hostsPerCell} to ${Math.min(data.hosts, (Number(cell) + 1) * data.hostsPerCell) - 1}`;
}

/** Cells of the matrix, of all operators or of the chosen one: to, from, logarithm of bytes. */
function trafficCells(plan) {
  const { operator, from, to, bytes, byOperator } = plan.traffic;
  const selected = byOperator ? chosen.in(plan) : -1;
  const sums = new Map();
  for (let i = 0; i < bytes.length; i++) {
    if (selected !== -1 && operator[i] !== selected) continue;
    const key = from[i] * 65536 + to[i];
    sums.set(key, (sums.get(key) ?? 0) + bytes[i]);
  }
  return [...sums].map(([key, sum]) => [key % 65536, Math.floor(key / 65536), Math.log10(sum)]);
}

function range(count) {
  return Array.from({ length: count }, (_, i) => i);
}

function boundsChart(plan) {
  return new Chart(210, "Lower bounds on the iteration time, and the time", () => {
    const rows = plan.bounds;
    return {
      grid: { left: 105, right: 78, top: 8, bottom: 28 },
      xAxis: axis({ type: "value", min: 0, axisLabel: { color: colour("quiet"), fontSize: 11, hideOverlap: true, formatter: timeText } }),
      yAxis: axis({ type: "category", inverse: true, data: rows.map((row) => row.label), axisTick: { show: false } }),
      tooltip: plainTooltip((at) => `${at.name}: ${timeText(at.value)}`),
      series: [{
        type: "bar",
        barMaxWidth: 22,
        data: rows.map((row) => ({ value: row.seconds, itemStyle: { color: row.label === "iteration" ? colour("accent") : colour("barrier") } })),
        label: { show: true, position: "right", formatter: (at) => timeText(at.value), color: colour("ink"), fontSize: 11 },
      }],
    };
  });
}

function searchChart(plan) {
  const { chains } = plan.search;
  return new Chart(230, "Best and current cost of the search, by evaluations", () => {
    const taken = plan.bounds.at(-1).seconds;
    const best = Math.min(taken, ...chains.flatMap((chain) => chain.best.filter((cost) => cost !== null)));
    const bound = Math.max(...plan.bounds.slice(0, -1).map((row) => row.seconds));
    const firsts = chains.map((chain) => chain.best.find((cost) => cost !== null) ?? best);
    const top = Math.max(best * 1.02, taken * 1.02, Math.min(Math.max(...firsts) * 1.15, best * 6));
    const series = chains.flatMap((chain, number) => {
      const name = chains.length > 1 ? ` of chain ${number}` : "";
      return [
        { name: `current${name}`, type: "scatter", symbolSize: 3, itemStyle: { color: colour("barrier"), opacity: 0.7 }, data: pairs(chain.evaluation, chain.current, top) },
        { name: `best${name}`, type: "line", step: "end", showSymbol: chain.best.length < 3, lineStyle: { width: 2, color: colour("accent") }, itemStyle: { color: colour("accent") }, data: pairs(chain.evaluation, chain.best, top) },
      ];
    });
    const line = (name, seconds, position) => ({ type: "line", data: [], markLine: { symbol: "none", silent: true, precision: -1, data: [{ yAxis: seconds }], lineStyle: { color: colour("collective"), type: "dashed" }, label: { formatter: name, position, color: colour("quiet") } } });
    series.push(line("lower bound of the plan", bound, "insideStartBottom"), line(`this plan, ${timeText(taken)}`, taken, "insideEndTop"));
    return {
      grid: { left: 62, right: 16, top: 12, bottom: 40 },
      xAxis: axis({ type: "value", min: 0, minInterval: 1, name: "evaluations", nameLocation: "middle", nameGap: 24, splitLine: { show: false } }),
      yAxis: axis({ type: "value", min: Math.max(0, Math.min(bound, best) - 0.12 * (top - Math.min(bound, best))), max: top, axisLabel: { color: colour("quiet"), fontSize: 11, hideOverlap: true, formatter: timeText, showMinLabel: false, showMaxLabel: false } }),
      tooltip: plainTooltip((at) => `${at.seriesName} at evaluation ${at.data[0]}\n${timeText(at.data[1])}`),
      series,
    };
  });
}

function pairs(across, up, top) {
  return across.map((x, i) => [x, up[i]]).filter(([, y]) => y !== null && y <= top);
}

/** Ticks of an axis of sizes, in the units of `sizeText`: the bytes of a step and of the last one, and what a tick is called. */
function sizeScale(most) {
  const [unit, size] = [["GiB", 2 ** 30], ["MiB", 2 ** 20]].find(([, bytes]) => most >= bytes) ?? ["KiB", 2 ** 10];
  const rough = Math.max(most, 1) / size / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((ticks) => ticks >= rough);
  return { step: step * size, top: Math.ceil(most / size / step) * step * size, text: (bytes) => `${digits(bytes / size)} ${unit}` };
}

function memoryChart(plan) {
  const { classes, purposes, reserve } = plan.memory;
  const shown = classes;
  return new Chart(74 + 30 * shown.length, "Memory of devices", () => {
    const used = range(purposes.length).filter((kind) => shown.some((row) => row.bytes[kind] > 0));
    const capacities = [...new Set(shown.map((row) => row.capacity))];
    const most = Math.max(...shown.map((row) => sum(row.bytes)));
    const near = capacities.filter((bytes) => bytes <= 3 * most);
    const scale = sizeScale(Math.max(most, ...near));
    const label = { formatter: (at) => reserve ? `${sizeText(at.value)} of ${sizeText(at.value / (1 - reserve))}` : `${sizeText(at.value)} there are`, position: "end", rotate: 0, color: colour("quiet"), fontSize: 11 };
    return {
      legend: { bottom: 0, left: 0, icon: "rect", itemWidth: 11, itemHeight: 11, itemGap: 14, selectedMode: false, textStyle: { color: colour("quiet"), fontSize: 11 } },
      grid: { left: 175, right: 190, top: 20, bottom: 46 },
      xAxis: axis({ type: "value", min: 0, max: Math.max(most, ...near) * 1.02, interval: scale.step, axisLabel: { color: colour("quiet"), fontSize: 11, hideOverlap: true, showMaxLabel: false, formatter: scale.text } }),
      yAxis: axis({ type: "category", inverse: true, data: shown.map((row) => row.label), axisTick: { show: false }, axisLabel: { width: 160, overflow: "truncate", fontSize: 11, color: colour("ink") } }),
      tooltip: plainTooltip((at) => `${at.name}\n${at.seriesName}: ${sizeText(at.value)}`),
      series: used.map((kind, number) => ({
        name: purposes[kind],
        type: "bar",
        stack: "memory",
        barMaxWidth: 20,
        itemStyle: { color: PURPOSE_COLOURS[kind] },
        data: shown.map((row) => row.bytes[kind]),
        label: number === used.length - 1 ? { show: true, position: "right", color: colour("ink"), fontSize: 11, formatter: (at) => `${sizeText(sum(shown[at.dataIndex].bytes))} of ${sizeText(shown[at.dataIndex].capacity)}` } : undefined,
        markLine: number === 0 && near.length ? { symbol: "none", silent: true, data: near.map((bytes) => ({ xAxis: bytes })), lineStyle: { color: colour("load-high"), type: "solid", width: 2 }, label } : undefined,
      })),
    };
  });
}

function memoryOverTime(plan) {
  const row = plan.memory.overTime;
  if (!row) return null;
  const { seconds, bytes } = row;
  const end = plan.iteration.seconds;
  const scale = sizeScale(Math.max(...seconds.map((_, i) => sum(bytes.map((levels) => levels[i])))));
  return new Chart(190, `Memory of ${row.label} over the iteration`, () => ({
    title: { text: `${row.label} over the iteration`, textStyle: { fontSize: 12, fontWeight: "normal", color: colour("quiet") }, left: 0, top: 0 },
    grid: { left: 62, right: 16, top: 24, bottom: 26 },
    xAxis: axis({ type: "value", min: 0, max: end, splitLine: { show: false }, axisLabel: { color: colour("quiet"), fontSize: 11, hideOverlap: true, showMaxLabel: false, formatter: timeText } }),
    yAxis: axis({ type: "value", min: 0, max: scale.top, interval: scale.step, axisLabel: { color: colour("quiet"), fontSize: 11, hideOverlap: true, formatter: scale.text } }),
    tooltip: { trigger: "axis", ...plainTooltip((at) => [timeText(at[0].data[0]), ...at.map((part) => `${part.seriesName}: ${sizeText(part.data[1])}`)].join("\n")) },
    series: plan.memory.purposes.map((name, kind) => ({
      name,
      type: "line",
      stack: "memory",
      step: "end",
      symbol: "none",
      lineStyle: { width: 0 },
      areaStyle: { color: PURPOSE_COLOURS[kind], opacity: 0.9 },
      itemStyle: { color: PURPOSE_COLOURS[kind] },
      data: [...seconds.map((time, i) => [time, bytes[kind][i]]), [end, bytes[kind].at(-1)]],
    })).filter((_, kind) => bytes[kind].some((level) => level > 0)),
  }));
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}
