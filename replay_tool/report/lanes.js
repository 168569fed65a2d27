"use strict";
// Draws the swim lanes, the progress curve and the event list from the data block. No network, no library.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const LEFT = 190, TOP = 34, WIDTH = 1230;
  let from = data.start, to = Math.max(data.end, data.start + 1), grouped = data.nodes.length > 40, chosen = null, shown = 500;
  const $ = (id) => document.getElementById(id);
  const make = (name, attributes, parent, text) => {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  };
  const x = (ms) => LEFT + (WIDTH - LEFT - 12) * (ms - from) / (to - from);
  const clamp = (ms) => Math.min(Math.max(ms, from), to);
  const since = (ms) => {
    let rest = Math.round(ms - data.start);
    const sign = rest < 0 ? "-" : "+";
    rest = Math.abs(rest);
    const s = Math.floor(rest / 1000), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60, milli = String(rest % 1000).padStart(3, "0");
    const two = (n) => String(n).padStart(2, "0");
    if (h) return `${sign}${h}:${two(m)}:${two(s % 60)}`;
    if (m) return `${sign}${m}:${two(s % 60)}.${milli}`;
    return `${sign}${s}.${milli} s`;
  };

  // Nodes that would be drawn alike are one lane: two thousand nodes of which three failed are some five lanes.
  const pixel = (ms) => ms === null ? null : Math.round(WIDTH * (ms - data.start) / Math.max(1, data.end - data.start));
  const lanes = () => {
    if (!grouped) return data.nodes.map((node, index) => ({ name: node[0], members: [index], spans: node[1] }));
    const groups = new Map();
    data.nodes.forEach((node, index) => {
      const blamed = data.blamed.includes(index);
      const key = blamed ? `#${index}` : JSON.stringify(node[1].map((span) => [span[0], pixel(span[1]), pixel(span[2]), span[3]]));
      if (!groups.has(key)) groups.set(key, { name: node[0], members: [], spans: node[1] });
      groups.get(key).members.push(index);
    });
    for (const lane of groups.values()) if (lane.members.length > 1) lane.name = `${lane.members.length} nodes like ${lane.name}`;
    return [...groups.values()];
  };

  const ticks = () => {
    const span = to - from, units = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 3e5, 6e5, 18e5, 36e5, 108e5, 216e5, 864e5, 6048e5, 2592e6];
    const step = units.find((unit) => span / unit <= 9) || 2592e6, found = [];
    for (let at = data.start + Math.ceil((from - data.start) / step) * step; at <= to; at += step) found.push(at);
    return found;
  };

  const drawLanes = () => {
    const rows = lanes(), high = rows.length > 200 ? 9 : 22, host = $("lanes");
    const height = TOP + rows.length * high + 10;
    const svg = make("svg", { width: WIDTH, height, viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": "Swim lanes: one row a node, time from left to right" });
    const defs = make("defs", {}, svg), hatch = make("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, defs);
    make("line", { x1: 0, y1: 0, x2: 0, y2: 6, stroke: "var(--mark)", "stroke-width": 1.4, opacity: .45 }, hatch);
    for (const at of ticks()) {
      make("line", { x1: x(at), x2: x(at), y1: TOP - 6, y2: height, class: "grid" }, svg);
      make("text", { x: x(at) + 3, y: 12, class: "quiet" }, svg, since(at));
    }
    const rowOf = new Map();
    rows.forEach((lane, row) => {
      const y = TOP + row * high;
      lane.members.forEach((index) => rowOf.set(index, row));
      if (high > 12) make("text", { x: 8, y: y + 14 }, svg, lane.name.length > 26 ? `${lane.name.slice(0, 25)}…` : lane.name);
      for (const [role, start, until, generation, slot] of lane.spans) {
        const end = until === null ? data.end : until;
        if (end < from || start > to) continue;
        const left = x(clamp(start)), width = Math.max(1, x(clamp(end)) - left);
        const kind = role === "active" ? (generation % 2 ? "active-b" : "active-a") : role;
        const box = make("rect", { x: left, y: y + 1, width, height: high - 2, class: kind }, svg);
        const label = role === "active" ? `generation ${generation}, slot ${slot}` : role;
        make("title", {}, box, `${lane.name}: ${label}, ${since(start)} to ${until === null ? "the end" : since(end)}`);
        if (role === "quarantined") make("rect", { x: left, y: y + 1, width, height: high - 2, fill: "url(#hatch)" }, svg);
        const text = role === "active" ? `g${generation}${lane.members.length === 1 ? ` s${slot}` : ""}` : role;
        if (high > 12 && width > 7 * text.length) make("text", { x: left + 4, y: y + 15 }, svg, text);
      }
    });
    for (const fact of data.facts) {
      if (fact[1] < from || fact[1] > to || !data.failures.includes(fact[2])) continue;
      for (const index of fact[4]) {
        const mark = make("circle", { cx: x(fact[1]), cy: TOP + rowOf.get(index) * high + high / 2, r: Math.min(4, high / 2 - 1), class: "fact" }, svg);
        make("title", {}, mark, `seq ${fact[0]}, ${since(fact[1])}: ${fact[3]}`);
      }
    }
    let lastLabel = -100;
    for (const plan of data.plans) {
      if (plan.at < from || plan.at > to) continue;
      const at = x(plan.at);
      const mark = make("g", { class: `plan ${plan.action}`, tabindex: 0, role: "button", "data-plan": plan.id, "aria-label": `Plan at ${since(plan.at)}: ${plan.headline}` }, svg);
      make("rect", { x: at - 6, y: 14, width: 12, height: height - 14, class: "hit" }, mark);
      make("line", { x1: at, x2: at, y1: 18, y2: height }, mark);
      if (at - lastLabel > 48) { make("text", { x: at + 3, y: 28 }, mark, plan.action); lastLabel = at; }
      make("title", {}, mark, `${since(plan.at)}: ${plan.headline}`);
    }
    const scroll = host.scrollTop;
    host.replaceChildren(svg);
    host.scrollTop = scroll;
    if (chosen) mark(chosen);
    $("range").textContent = `${since(from)} to ${since(to)}, ${rows.length} ${rows.length === 1 ? "lane" : "lanes"} for ${data.nodes.length} nodes`;
  };

  const drawProgress = () => {
    const host = $("progress"), high = 150, points = data.progress;
    if (!points.length) { host.textContent = "The log names no step."; return; }
    const top = Math.max(1, ...points.map((point) => point[2])), base = Math.min(...points.map((point) => point[2]));
    const y = (step) => 8 + (high - 26) * (1 - (step - base) / Math.max(1, top - base));
    const svg = make("svg", { width: WIDTH, height: high, viewBox: `0 0 ${WIDTH} ${high}`, role: "img", "aria-label": data.progressText });
    for (const step of [base, top]) make("text", { x: 8, y: y(step) + 4, class: "quiet" }, svg, `step ${step.toLocaleString("en")}`);
    for (const at of ticks()) make("line", { x1: x(at), x2: x(at), y1: 4, y2: high - 16, class: "grid" }, svg);
    for (const lost of data.lost) {
      if (lost.at < from || lost.at > to) continue;
      const box = make("rect", { x: x(lost.at) - 3, y: y(lost.high), width: 6, height: Math.max(2, y(lost.low) - y(lost.high)), class: "lost" }, svg);
      make("title", {}, box, `${lost.high - lost.low} steps lost at ${since(lost.at)}`);
    }
    const path = points.map((point, index) => `${index ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(point[2]).toFixed(1)}`).join("");
    const clip = make("clipPath", { id: "inside" }, make("defs", {}, svg));
    make("rect", { x: LEFT, y: 0, width: WIDTH - LEFT - 12, height: high }, clip);
    make("path", { d: path, class: "steps", "clip-path": "url(#inside)" }, svg);
    host.replaceChildren(svg);
  };

  const drawEvents = () => {
    const words = $("filter").value.trim().toLowerCase(), body = $("rows");
    const found = words ? data.facts.filter((fact) => `${fact[0]} ${data.types[fact[2]]} ${fact[3]} ${fact[4].map((i) => data.nodes[i][0]).join(" ")}`.toLowerCase().includes(words)) : data.facts;
    const rows = document.createDocumentFragment();
    for (const fact of found.slice(0, shown)) {
      const row = document.createElement("tr");
      for (const [text, kind] of [[fact[0], "number"], [since(fact[1]), "number"], [data.types[fact[2]], ""], [fact[3], ""]]) {
        const cell = document.createElement("td");
        cell.textContent = text;
        if (kind) cell.className = kind;
        row.appendChild(cell);
      }
      rows.appendChild(row);
    }
    body.replaceChildren(rows);
    $("count").textContent = `${Math.min(shown, found.length).toLocaleString("en")} of ${found.length.toLocaleString("en")} events`;
    $("more").hidden = found.length <= shown;
  };

  const mark = (id) => {
    document.querySelectorAll(".chosen").forEach((node) => node.classList.remove("chosen"));
    const article = document.getElementById(`plan-${id}`), line = document.querySelector(`[data-plan="${id}"]`);
    if (article) article.classList.add("chosen");
    if (line) line.classList.add("chosen");
    return article;
  };
  const choose = (id) => {
    chosen = id;
    const article = mark(id);
    if (article) { article.scrollIntoView({ block: "nearest" }); article.focus({ preventScroll: true }); }
  };
  const zoom = (factor, middle = (from + to) / 2) => {
    const half = (to - from) * factor / 2;
    from = Math.max(data.start, middle - half);
    to = Math.min(Math.max(data.end, data.start + 1), middle + half);
    if (to - from < 5) to = from + 5;
    redraw();
  };
  const move = (part) => {
    const by = Math.max(data.start - from, Math.min(data.end - to, (to - from) * part));
    from += by; to += by; redraw();
  };
  const whole = () => { from = data.start; to = Math.max(data.end, data.start + 1); redraw(); };
  const redraw = () => { drawLanes(); drawProgress(); };

  document.addEventListener("click", (event) => {
    const plan = event.target.closest("[data-plan]"), span = event.target.closest("[data-from]");
    if (span) { from = +span.dataset.from; to = +span.dataset.to; redraw(); }
    if (plan) choose(plan.dataset.plan);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const plan = event.target.closest && event.target.closest("g[data-plan]");
    if (plan && (event.key === "Enter" || event.key === " ")) { event.preventDefault(); choose(plan.dataset.plan); return; }
    const ids = data.plans.map((item) => item.id), at = ids.indexOf(chosen);
    const keys = {
      "+": () => zoom(.5), "-": () => zoom(2), "0": whole, "[": () => move(-.5), "]": () => move(.5),
      n: () => ids.length && choose(ids[Math.min(ids.length - 1, at + 1)]), p: () => ids.length && choose(ids[Math.max(0, at - 1)]),
      "/": () => { event.preventDefault(); $("filter").focus(); },
      Escape: () => { chosen = null; mark(""); },
    };
    if (keys[event.key]) keys[event.key]();
  });
  $("in").onclick = () => zoom(.5);
  $("out").onclick = () => zoom(2);
  $("back").onclick = () => move(-.5);
  $("forth").onclick = () => move(.5);
  $("whole").onclick = whole;
  $("every").checked = !grouped;
  $("every").onchange = (event) => { grouped = !event.target.checked; drawLanes(); };
  $("theme").onchange = (event) => { if (event.target.value) document.documentElement.dataset.theme = event.target.value; else delete document.documentElement.dataset.theme; };
  $("filter").oninput = () => { shown = 500; drawEvents(); };
  $("more").onclick = () => { shown += 2000; drawEvents(); };
  window.addEventListener("beforeprint", () => { shown = Infinity; drawEvents(); });
  redraw();
  drawEvents();
  document.documentElement.dataset.ready = "yes";
})();
