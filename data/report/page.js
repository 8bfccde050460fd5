"use strict";
(function () {
    const data = JSON.parse(document.getElementById("data").textContent);
    const runs = data.runs;
    const colors = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#f0e442"];
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    const bright = { "#0072b2": "#56b4e9", "#56b4e9": "#9ad0f5" }; // blues that a dark page would swallow
    const color = (i) => (dark.matches ? bright[colors[i % colors.length]] : undefined) || colors[i % colors.length];
    // Later curves are dashed, so that one that lies on an earlier one lets it be seen.
    const dash = (i) => [[], [7, 4], [2, 3], [9, 3, 2, 3]][i % 4];
    const charts = [];

    // --- words and elements
    function add(parent, tag, text, attributes) {
        const element = document.createElement(tag);
        if (text !== undefined && text !== null)
            element.textContent = text;
        for (const key in attributes || {})
            element.setAttribute(key, attributes[key]);
        parent.appendChild(element);
        return element;
    }
    function show(x, digits) {
        if (x === null || x === undefined || typeof x === "string")
            return x || "–";
        const size = Math.abs(x);
        if (size !== 0 && (size < 1e-3 || size >= 1e7))
            return x.toExponential(2);
        return x.toLocaleString("en-US", { maximumFractionDigits: digits === undefined ? 4 : digits });
    }
    function tick(value, index, ticks) { // an axis of small numbers: 2.5e-5, not 2.500000E-5
        const small = this.type === "linear" && value !== 0 && ticks.every((t) => Math.abs(t.value) < 1e-3);
        return small ? Number(value.toPrecision(3)).toExponential().replace("e-", "e−") : Chart.Ticks.formatters[this.type === "linear" ? "numeric" : "logarithmic"].call(this, value, index, ticks);
    }
    const mib = (x) => (x === null || x === undefined ? "–" : show(x / 1048576, 1) + " MiB");

    // --- the runs, and what sets them apart
    function runTable() {
        const table = document.getElementById("runs"), first = runs[0], several = runs.length > 1;
        // What differs comes first, so that a phone shows it; long texts last, where they may wrap.
        const columns = [["run", (r) => r.name]];
        if (several) {
            const loss = (r) => (r.best_val !== null && first.best_val !== null ? r.best_val - first.best_val : r.end_loss - first.end_loss);
            columns.push(["loss against " + first.name.split("/").pop(), (r) => (r === first ? "–" : (loss(r) > 0 ? "+" : "") + show(loss(r), 5)), 1]);
            columns.push(["speedup", (r) => (r === first || !first.tokens_per_second ? "–" : show(r.tokens_per_second / first.tokens_per_second, 2) + " ×"), 1]);
        }
        columns.push(["training loss", (r) => show(r.end_loss), 1], ["best validation", (r) => show(r.best_val), 1],
            ["tokens/s", (r) => show(r.tokens_per_second, 0), 1], ["memory", (r) => mib(r.memory), 1],
            ["skipped", (r) => show(r.skipped, 0), 1], ["steps", (r) => show(r.last_step, 0), 1],
            ["precision", (r) => r.precision], ["device", (r) => r.device], ["model", (r) => r.model]);
        const head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
        columns.forEach((c) => add(head, "th", c[0], { scope: "col", class: c[2] ? "number" : "" }));
        runs.forEach((r, i) => {
            const row = add(body, "tr");
            columns.forEach((c, k) => {
                const cell = add(row, k === 0 ? "th" : "td", k === 0 ? "" : c[1](r), { class: c[2] ? "number" : "" });
                if (k === 0) {
                    cell.setAttribute("scope", "row");
                    add(cell, "span", "", { class: "swatch", style: "background:" + color(i) });
                    cell.append(c[1](r));
                }
            });
        });
        const health = document.getElementById("health");
        runs.forEach((r) => {
            if (r.health)
                add(health, "p", (runs.length > 1 ? r.name + ": " : "") + r.health.text, { class: r.health.healthy ? "good" : "bad" });
            if (r.decision && !r.decision.endsWith(", as asked"))
                add(health, "p", (runs.length > 1 ? r.name + ", " : "") + "precision " + r.decision, { class: "hint" });
        });
    }

    // --- curves
    function points(run, name) {
        const s = run.series[name];
        if (!s)
            return [];
        return s[0].map((x, i) => ({ x: x, y: typeof s[1][i] === "number" ? s[1][i] : NaN }));
    }
    function smoothed(list, amount) {
        if (!amount)
            return list;
        let mean = 0, weight = 0; // Adam's debiased moving average
        return list.map((p) => {
            if (!Number.isFinite(p.y))
                return p;
            mean = amount * mean + (1 - amount) * p.y;
            weight = amount * weight + (1 - amount);
            return { x: p.x, y: mean / weight };
        });
    }
    function broken(run, name) { // steps whose value is not a number
        const s = run.series[name];
        return s ? s[0].filter((_, i) => typeof s[1][i] !== "number") : [];
    }
    function lines(names, only) { // only: one run, whose metrics get the colours
        const sets = [];
        runs.forEach((run, i) => names.forEach((name, k) => {
            if (only && run !== only)
                return;
            const raw = points(run, name);
            if (raw.length > 0)
                sets.push({
                    label: (runs.length > 1 && !only ? run.name : "") + (names.length > 1 ? (runs.length > 1 && !only ? " " : "") + name.replace("gradients/norm/", "") : "") || name,
                    data: raw, raw: raw, borderColor: color(runs.length > 1 && !only ? i : k), backgroundColor: color(runs.length > 1 && !only ? i : k),
                    borderDash: only ? dash(k) : dash(runs.length > 1 ? i : k), borderWidth: 1.5, pointRadius: raw.length < 40 ? 2 : 0, order: -(only ? k : i),
                    pointHoverRadius: 4, spanGaps: false,
                });
        }));
        return sets;
    }
    function theme(chart) {
        const style = getComputedStyle(document.documentElement);
        const fore = style.getPropertyValue("--soft").trim(), grid = style.getPropertyValue("--line").trim();
        for (const axis of Object.values(chart.options.scales)) {
            axis.ticks.color = fore;
            axis.grid.color = grid;
            axis.title.color = fore;
        }
        chart.options.plugins.legend.labels.color = fore;
        chart.update("none");
    }
    function readout(chart, caption, note, active) {
        if (active.length === 0) {
            caption.textContent = note;
            return;
        }
        const x = chart.data.datasets[active[0].datasetIndex].data[active[0].index].x;
        caption.textContent = "step " + show(x, 0) + ": " + active.map((a) => {
            const set = chart.data.datasets[a.datasetIndex], p = set.data[a.index];
            return (chart.data.datasets.length > 1 ? set.label + " " : "") + show(p.text || p.y, 6) + (p.x !== x ? " (at " + show(p.x, 0) + ")" : "");
        }).join(", ");
    }
    function nearest(list, x) {
        let low = 0, high = list.length - 1;
        while (high - low > 1) {
            const middle = (low + high) >> 1;
            if (list[middle].x < x)
                low = middle;
            else
                high = middle;
        }
        return Math.abs(list[low].x - x) <= Math.abs(list[high].x - x) ? low : high;
    }
    function walk(chart, by) {
        const active = chart.getActiveElements(), sets = chart.data.datasets;
        const lead = active.length > 0 ? active[0].datasetIndex : 0, list = sets[lead].data;
        const from = active.length > 0 ? active[0].index : by > 0 ? -1 : list.length;
        const index = by === Infinity ? list.length - 1 : by === -Infinity ? 0 : Math.min(list.length - 1, Math.max(0, from + by));
        const elements = sets.map((set, i) => ({ datasetIndex: i, index: i === lead ? index : nearest(set.data, list[index].x) }));
        elements.sort((a, b) => (a.datasetIndex === lead ? -1 : b.datasetIndex === lead ? 1 : 0));
        chart.setActiveElements(elements);
        const place = chart.getDatasetMeta(lead).data[index];
        chart.tooltip.setActiveElements(elements, place ? { x: place.x, y: place.y } : { x: 0, y: 0 });
        chart.update("none");
    }
    function draw(spec) {
        const sets = spec.sets || lines(spec.names);
        if (sets.length === 0)
            return;
        const figure = add(document.getElementById("charts"), "figure", null, { id: "chart-" + spec.id });
        add(figure, "h3", spec.title, { id: "head-" + spec.id });
        const box = add(figure, "div", null, { class: "canvas" });
        const canvas = add(box, "canvas", null, { tabindex: "0", role: "img", "aria-labelledby": "head-" + spec.id, "aria-describedby": "note-" + spec.id });
        const bad = spec.names ? runs.flatMap((r) => spec.names.flatMap((n) => broken(r, n))) : [];
        const note = (spec.note || "") + (bad.length > 0 ? (spec.note ? " " : "") + "Not a number at step " + bad.slice(0, 8).join(", ") + (bad.length > 8 ? " and " + (bad.length - 8) + " more" : "") + "." : "");
        const caption = add(figure, "figcaption", note, { id: "note-" + spec.id, "aria-live": "polite" });
        // A counter that stays at one value: from 0, not one below and above it.
        const values = sets.flatMap((s) => s.data.map((p) => p.y)).filter((y) => Number.isFinite(y)), level = values[0];
        const still = !spec.log && values.length > 0 && level >= 0 && values.every((y) => y === level);
        const chart = new Chart(canvas, {
            type: spec.type || "line",
            data: { datasets: sets },
            options: {
                animation: false, parsing: false, normalized: true, responsive: true, maintainAspectRatio: false,
                interaction: { mode: "nearest", axis: spec.type === "scatter" ? "xy" : "x", intersect: false },
                onHover: (event, active) => readout(chart, caption, note, active),
                scales: {
                    x: { type: "linear", title: { display: true, text: "step" }, grid: {}, ticks: { maxRotation: 0 } },
                    y: { type: spec.log ? "logarithmic" : "linear", title: { display: true, text: spec.unit }, grid: {}, ticks: { callback: tick }, min: still ? 0 : undefined, suggestedMax: still ? Math.max(1, 2 * level) : undefined },
                },
                plugins: {
                    legend: { display: sets.length > 1, labels: { boxWidth: 22, boxHeight: 0 } }, // a piece of the line
                    tooltip: {
                        callbacks: {
                            title: (items) => (items.length > 0 ? "step " + show(items[0].raw.x, 0) : ""),
                            label: (item) => (sets.length > 1 ? item.dataset.label + ": " : "") + (item.raw.text || show(item.raw.y, 6)),
                        },
                    },
                },
            },
        });
        canvas.addEventListener("keydown", (event) => {
            const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
            if (event.key === "Escape") {
                chart.setActiveElements([]);
                chart.tooltip.setActiveElements([], { x: 0, y: 0 });
                chart.update("none");
            } else if (by === undefined) {
                return;
            } else {
                walk(chart, by);
            }
            event.preventDefault();
            readout(chart, caption, note, chart.getActiveElements());
        });
        canvas.addEventListener("mouseleave", () => { caption.textContent = note; });
        chart.smooths = spec.smooth;
        chart.logs = spec.id === "loss" || spec.id === "validation";
        charts.push(chart);
        theme(chart);
    }
    function difference() { // of each run's loss from the first one's, at the steps that both have
        const name = runs.every((r) => r.series["val/loss"]) ? "val/loss" : "train/loss", base = new Map(points(runs[0], name).map((p) => [p.x, p.y]));
        return runs.slice(1).map((run, i) => {
            const list = points(run, name).filter((p) => base.has(p.x)).map((p) => ({ x: p.x, y: p.y - base.get(p.x) }));
            return { label: run.name + " − " + runs[0].name, data: list, raw: list, borderColor: color(i + 1), backgroundColor: color(i + 1), borderWidth: 1.5, pointRadius: list.length < 40 ? 2 : 0 };
        }).filter((set) => set.data.length > 0);
    }
    function scaleSets() { // the loss scale, and a cross where a step was skipped
        const sets = lines(["amp/loss_scale"]).map((s) => Object.assign(s, { stepped: true }));
        runs.forEach((run, i) => {
            if (run.skips.length === 0)
                return;
            const scale = points(run, "amp/loss_scale");
            if (scale.length > 0)
                sets.push({
                    label: (runs.length > 1 ? run.name + " " : "") + "skipped", showLine: false, pointStyle: "crossRot", pointRadius: 5, borderColor: runs.length > 1 ? color(i) : "#d55e00", borderWidth: 2,
                    data: run.skips.map((s) => ({ x: s[0], y: scale[nearest(scale, s[0])].y, text: s[1] + " skipped" })),
                });
        });
        return sets;
    }
    function histogramSets(run) { // one square a bucket and step, as opaque as its share
        const h = run.histogram, list = [];
        h.steps.forEach((step, i) => {
            const total = h.counts[i].reduce((a, b) => a + b, 0) || 1;
            h.counts[i].forEach((n, k) => {
                if (n > 0)
                    list.push({ x: step, y: h.exponents[k], share: n / total, text: "2^" + h.exponents[k] + ": " + show(100 * n / total, 2) + " %" });
            });
        });
        const most = list.reduce((a, p) => Math.max(a, p.share), 0);
        return [{
            label: run.name, data: list, pointStyle: "rect", pointRadius: 6, borderWidth: 0,
            backgroundColor: (c) => "rgba(0,114,178," + (c.raw ? 0.08 + 0.92 * Math.sqrt(c.raw.share / most) : 0).toFixed(3) + ")",
        }];
    }
    const known = ["train/loss", "val/loss", "val/best_loss", "train/lr", "train/tokens", "gradients/total_norm",
        "gradients/clip_factor", "amp/enabled", "amp/loss_scale", "amp/growth_tracker", "amp/skipped_steps", "perf/tokens_per_second",
        "perf/step_ms", "perf/memory_bytes", "perf/mfu", "perf/model_tflops", "perf/wait_ms", "perf/joules_per_token"];
    function drawAll() {
        draw({ id: "loss", title: "Training loss", unit: "nats/token", names: ["train/loss"], smooth: true });
        draw({ id: "validation", title: "Validation loss", unit: "nats/token", names: ["val/loss"] });
        if (runs.length > 1)
            draw({ id: "difference", title: "Difference in loss", unit: "nats/token", sets: difference(), smooth: true, note: "Of each run from " + runs[0].name + ", where both were logged." });
        draw({ id: "lr", title: "Learning rate", unit: "", names: ["train/lr"] });
        draw({ id: "norm", title: "Gradient norm", unit: "before clipping", names: ["gradients/total_norm"], log: true, smooth: true });
        draw({ id: "scale", title: "Loss scale", unit: "", sets: scaleSets(), log: true, note: runs.some((r) => r.skips.length > 0) ? "Crosses: steps that were skipped because a gradient was not finite." : "No step was skipped." });
        draw({ id: "throughput", title: "Throughput", unit: "tokens/s", names: ["perf/tokens_per_second"], smooth: true });
        draw({ id: "step", title: "Time of a step", unit: "ms", names: ["perf/step_ms"], smooth: true });
        const has = (name) => runs.some((r) => r.series[name]);
        if (has("perf/mfu"))
            draw({ id: "mfu", title: "Model FLOPs utilization", unit: "of the peak", names: ["perf/mfu"], smooth: true });
        else if (has("perf/model_tflops"))
            draw({ id: "flops", title: "Model FLOPs", unit: "TFLOP/s", names: ["perf/model_tflops"], smooth: true });
        if (has("perf/joules_per_token"))
            draw({ id: "energy", title: "Energy", unit: "joules/token", names: ["perf/joules_per_token"], smooth: true });
        if (has("perf/wait_ms"))
            draw({ id: "waits", title: "Waits for data", unit: "ms of a step", names: ["perf/wait_ms"], smooth: true });
        const memory = lines(["perf/memory_bytes"]);
        memory.forEach((set) => { set.data = set.data.map((p) => ({ x: p.x, y: p.y / 1048576 })); });
        draw({ id: "memory", title: "Memory", unit: "MiB on the device", sets: memory });
        runs.forEach((run, i) => {
            if (run.histogram)
                draw({ id: "histogram" + i, title: "Gradients by magnitude" + (runs.length > 1 ? ": " + run.name : ""), unit: "log₂ |gradient|", sets: histogramSets(run), type: "scatter", note: "Below 2^-25 FP16 makes zero of a value, below 2^-14 it loses digits." });
        });
        runs.forEach((run, i) => {
            const blocks = Object.keys(run.series).filter((n) => n.startsWith("gradients/norm/"));
            draw({ id: "blocks" + i, title: "Gradient norm by module" + (runs.length > 1 ? ": " + run.name : ""), unit: "unscaled", sets: lines(blocks, run), log: true, smooth: true });
        });
        const others = new Set(runs.flatMap((r) => Object.keys(r.series)).filter((n) => !known.includes(n) && !n.startsWith("gradients/norm/")));
        Array.from(others).sort().forEach((name) => draw({ id: name.replace(/[^a-z0-9]+/gi, "-"), title: name, unit: "", names: [name] }));
    }

    // --- texts
    function fold(parent, head, open) {
        const details = add(parent, "details");
        details.open = open;
        add(details, "summary", head);
        return details;
    }
    function texts() {
        const named = (r, what) => (runs.length > 1 ? r.name + ": " : "") + what;
        let samples = 0, tables = 0, configs = 0;
        runs.forEach((r) => {
            r.samples.forEach((s, i) => {
                add(fold(document.getElementById("samples"), named(r, "step " + show(s[0], 0)), i === r.samples.length - 1), "pre", s[1], { class: "text" });
                samples++;
            });
            r.pictures.forEach((p, i) => {
                const head = named(r, "step " + show(p[0], 0) + ": given, true, predicted, difference");
                add(fold(document.getElementById("samples"), head, i === r.pictures.length - 1), "img", null, { src: p[1], alt: head });
                samples++;
            });
            if (r.explain.length > 0) {
                const details = fold(document.getElementById("precision"), named(r, r.precision), runs.length === 1);
                const table = add(add(details, "div", null, { class: "wide" }), "table");
                const columns = ["op", "module", "count", "storage", "compute", "accumulate", "reduce", "rule"];
                const head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
                columns.forEach((c) => add(head, "th", c, { scope: "col" }));
                r.explain.forEach((row) => {
                    const line = add(body, "tr");
                    columns.forEach((c) => add(line, "td", row[c]));
                });
                tables++;
            }
            if (r.config) {
                add(fold(document.getElementById("config"), named(r, "config.yaml"), false), "pre", r.config);
                configs++;
            }
        });
        document.getElementById("samples-section").hidden = samples === 0;
        document.getElementById("precision-section").hidden = tables === 0;
        document.getElementById("config-section").hidden = configs === 0;
    }

    document.getElementById("title").textContent = data.title;
    document.getElementById("about").textContent = data.about;
    runTable();
    drawAll();
    texts();
    document.getElementById("smooth").addEventListener("input", (event) => charts.forEach((chart) => {
        if (!chart.smooths)
            return;
        chart.data.datasets.forEach((set) => { set.data = smoothed(set.raw, Number(event.target.value)); });
        chart.update("none");
    }));
    document.getElementById("logloss").addEventListener("change", (event) => charts.forEach((chart) => {
        if (!chart.logs)
            return;
        chart.options.scales.y.type = event.target.checked ? "logarithmic" : "linear";
        chart.update("none");
        theme(chart);
    }));
    dark.addEventListener("change", () => charts.forEach(theme));
    window.mezzoCharts = charts; // for the console, and for tests
})();
