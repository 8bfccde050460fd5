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
        if (this.type === "logarithmic") { // 1, 2, 5, 10 … where there are few decades, else 1, 10 …
            const lead = Math.round(value / Math.pow(10, Math.floor(Math.log10(value) + 1e-9)));
            const few = ticks[ticks.length - 1].value / ticks[0].value < 200;
            return lead === 1 || (few && (lead === 2 || lead === 5)) ? show(value) : "";
        }
        const small = value !== 0 && ticks.every((t) => Math.abs(t.value) < 1e-3);
        return small ? Number(value.toPrecision(3)).toExponential().replace("e-", "e−") : Chart.Ticks.formatters.numeric.call(this, value, index, ticks);
    }
    function bytes(x) { // as the command writes them
        const units = ["B", "kB", "MB", "GB", "TB"];
        let i = 0;
        for (; x >= 1000 && i + 1 < units.length; i++)
            x /= 1000;
        return x.toFixed(i === 0 ? 0 : 1) + " " + units[i];
    }

    // --- the head: what was trained, and how it went
    const when = (seconds) => (seconds > 0 ? new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ") + " UTC" : null);
    function time(seconds) {
        if (!Number.isFinite(seconds))
            return null;
        if (seconds < 60)
            return seconds < 1 ? Math.round(1000 * seconds) + " ms" : seconds.toFixed(1) + " s";
        const s = Math.round(seconds), two = (x) => String(x).padStart(2, "0");
        return s >= 3600 ? Math.floor(s / 3600) + ":" + two(Math.floor(s / 60) % 60) + ":" + two(s % 60) + " h" : Math.floor(s / 60) + ":" + two(s % 60) + " min";
    }
    const setting = (run, key) => (Object.hasOwn(run.settings, key) && run.settings[key] !== "" ? run.settings[key] : null);
    const kinds = new Map([["val/loss", "validation loss"], ["val/sampled_loss", "sampled validation loss"]]);
    const loss = (x) => (typeof x === "number" ? x.toFixed(4) : show(x));
    function dataOf(run) {
        const names = ["data.path", "data.train", "data.val", "data.features", "data.latents"].map((key) => setting(run, key));
        return names.filter((name, i) => name && !(i === 0 && (names[1] || names[3]))).join(", ") || null;
    }
    function batchOf(run) {
        const size = setting(run, "train.batch_size"), accum = setting(run, "train.grad_accum"), length = setting(run, "model.seq_len");
        if (!size)
            return null;
        return size + (accum && accum !== "1" ? " × " + accum + " micro batches" : "") + (run.unit === "tokens" && length && length !== "0" ? " × " + length + " tokens" : "");
    }
    function padding(run) { // of training batches
        if (typeof run.padding !== "number")
            return null;
        const percent = (x) => show(100 * x, 1) + " %", packed = run.padding !== run.padding_unpacked;
        return [percent(run.padding), "of a training batch" + (packed ? "; with a record in each row " + percent(run.padding_unpacked) : "")];
    }
    function validation(run, name) {
        const v = run.validations.find((x) => x.name === name);
        if (!v)
            return null;
        const best = v.least !== null && v.least !== v.last ? "; lowest " + loss(v.least) : "";
        return [loss(v.last), "at step " + show(v.step, 0) + (name === "val/sampled_loss" ? ", of random batches" : "") + best];
    }
    function meeting(run, name) { // both runs' losses at the last step that both have
        const m = run.meetings.find((x) => x.name === name);
        if (run === runs[0])
            return ["–", "the run that the others are compared with"];
        if (run.unit !== runs[0].unit)
            return ["–", "of " + run.unit + ", and " + runs[0].name + "'s is of " + runs[0].unit];
        if (!m)
            return ["–", "no step has this loss in both runs"];
        const by = m.own - m.first;
        return [(by > 0 ? "+" : by < 0 ? "−" : "") + Math.abs(by).toFixed(4), "at step " + show(m.step, 0) + (name === "train/loss" ? ", means of the last tenth: " : ": ") + loss(m.own) + " against " + loss(m.first)];
    }
    // A row: its name, then of a run a text, or a text and what it is.
    function facts() {
        const first = runs[0], rows = [];
        if (runs.length > 1) {
            rows.push(["training loss against " + first.name, (r) => meeting(r, "train/loss")]);
            for (const [name, words] of kinds)
                if (runs.some((r) => r.meetings.some((m) => m.name === name && r !== first)))
                    rows.push([words + " against " + first.name, (r) => meeting(r, name)]);
            rows.push(["speedup", (r) => (r === first || r.unit !== first.unit || !first.middle_speed || !r.middle_speed ? null : [show(r.middle_speed / first.middle_speed, 2) + " ×", "medians of " + r.unit + " per second"])]);
        }
        rows.push(["training loss", (r) => [loss(r.loss), "last step; mean of the last tenth of the reports " + loss(r.end_loss)]]);
        for (const [name, words] of kinds)
            rows.push([words, (r) => validation(r, name)]);
        rows.push(["steps", (r) => { const all = setting(r, "train.steps"); return show(r.last_step, 0) + (all && Number(all) !== r.last_step ? " of " + show(Number(all), 0) : ""); }],
            ["time in steps", (r) => time(r.seconds)],
            ["speed", (r) => (r.speed === null ? null : [show(r.speed, 0) + " " + r.unit + "/s", "all steps; median of the reports " + show(r.middle_speed, 0)])],
            ["memory", (r) => (r.memory === null ? null : bytes(r.memory))],
            ["skipped steps", (r) => show(r.skipped, 0)],
            ["precision", (r) => (r.decision && !r.decision.endsWith(", as asked") ? [r.precision, r.decision] : r.precision)],
            ["device", (r) => r.device], ["model", (r) => r.model], ["data", dataOf], ["batch", batchOf], ["padding", padding], ["seed", (r) => setting(r, "train.seed")],
            ["started", (r) => when(r.started)], ["last record", (r) => when(r.written)]);
        const place = document.getElementById("facts");
        const filled = rows.map((row) => [row[0], runs.map((r) => row[1](r))]).filter((row) => row[1].some((cell) => cell !== null && cell !== undefined));
        if (runs.length > 1)
            factTable(add(place, "div", null, { class: "wide" }), filled);
        else
            factList(place, filled);
    }
    function value(parent, cell) {
        const pair = Array.isArray(cell) ? cell : [cell === null || cell === undefined ? "–" : cell];
        add(parent, "span", pair[0], { class: /^[+−–0-9]/.test(pair[0]) ? "value" : "" });
        if (pair.length > 1)
            add(parent, "small", pair[1]);
    }
    function factList(place, rows) {
        const list = add(place, "dl", null, { class: "facts" });
        rows.forEach((row) => {
            const box = add(list, "div");
            add(box, "dt", row[0]);
            value(add(box, "dd"), row[1][0]);
        });
    }
    function factTable(place, rows) {
        const table = add(place, "table", null, { id: "runs" }), head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
        add(head, "th", "", { scope: "col" });
        runs.forEach((r, i) => {
            const cell = add(head, "th", null, { scope: "col" });
            add(cell, "span", "", { class: "swatch" }).style.background = color(i);
            cell.append(r.name);
        });
        rows.forEach((row) => {
            const line = add(body, "tr");
            add(line, "th", row[0], { scope: "row" });
            row[1].forEach((cell) => value(add(line, "td"), cell));
        });
    }
    function healths() {
        const place = document.getElementById("health");
        runs.forEach((r) => {
            const name = runs.length > 1 ? r.name + ": " : "";
            add(place, "p", name + r.health.text, { class: r.health.healthy ? "good" : "bad" });
            if (r.bad > 0)
                add(place, "p", name + r.first_bad + ": left out" + (r.bad > 1 ? ", as are " + show(r.bad - 1, 0) + " more lines or values" : ""), { class: "bad" });
        });
    }

    // --- curves
    function points(run, name) {
        if (!Object.hasOwn(run.series, name))
            return [];
        const s = run.series[name];
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
        const s = Object.hasOwn(run.series, name) ? run.series[name] : [[], []];
        return s[0].filter((_, i) => typeof s[1][i] !== "number");
    }
    // One line a run and metric. Of one run's metrics each has a colour; of several runs the run has it. only: one run
    // of several, whose metrics get the colours.
    function lines(names, only) {
        const shown = names.filter((name) => runs.some((r) => Object.hasOwn(r.series, name))), sets = [];
        const named = only !== undefined || runs.length === 1;
        runs.forEach((run, i) => shown.forEach((name, k) => {
            const raw = only && run !== only ? [] : points(run, name);
            if (raw.length === 0)
                return;
            const n = named ? k : i, label = (named ? "" : run.name) + (shown.length > 1 || named ? (named ? "" : " ") + word(name) : "");
            sets.push(Object.assign({
                label: label, data: raw, raw: raw, borderColor: color(n), backgroundColor: color(n), borderDash: dash(named || shown.length === 1 ? n : k), borderWidth: 1.5,
                pointRadius: raw.length < 40 ? 2 : 0, order: -n, pointHoverRadius: 4, spanGaps: false,
            }, kinds.has(name) ? { borderDash: [5, 3], borderWidth: 2, order: -n - 100, pointRadius: raw.length === 1 ? 5 : raw.length < 80 ? 3 : 0, pointStyle: name === "val/loss" ? "circle" : "triangle", smooths: false } : {}));
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
        const sets = spec.sets || lines(spec.names, spec.only);
        if (sets.length === 0 || (!spec.type && constant(spec, sets)))
            return;
        const figure = add(document.getElementById("charts"), "figure", null, { id: "chart-" + spec.id });
        add(figure, "h3", spec.title, { id: "head-" + spec.id });
        const box = add(figure, "div", null, { class: "canvas" });
        const canvas = add(box, "canvas", null, { tabindex: "0", role: "img", "aria-labelledby": "head-" + spec.id, "aria-describedby": "note-" + spec.id });
        const bad = spec.names ? runs.flatMap((r) => spec.names.flatMap((n) => broken(r, n))) : [];
        const note = (spec.note || "") + (bad.length > 0 ? (spec.note ? " " : "") + "Not a number at step " + bad.slice(0, 8).join(", ") + (bad.length > 8 ? " and " + (bad.length - 8) + " more" : "") + "." : "");
        const caption = add(figure, "figcaption", note, { id: "note-" + spec.id, "aria-live": "polite" });
        const chart = new Chart(canvas, {
            type: spec.type || "line",
            data: { datasets: sets },
            options: {
                animation: false, parsing: false, normalized: true, responsive: true, maintainAspectRatio: false,
                interaction: { mode: "nearest", axis: spec.type === "scatter" ? "xy" : "x", intersect: false },
                onHover: (event, active) => readout(chart, caption, note, active),
                scales: {
                    x: { type: "linear", title: { display: true, text: "step" }, grid: {}, ticks: { maxRotation: 0 } },
                    y: { type: spec.log ? "logarithmic" : "linear", title: { display: true, text: spec.unit }, grid: {}, ticks: { callback: tick, autoSkip: !spec.log } },
                },
                plugins: {
                    legend: { display: sets.length > 1, labels: { boxWidth: 22, boxHeight: 0, sort: (a, b) => a.datasetIndex - b.datasetIndex } }, // a piece of the line
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
        chart.logs = spec.id === "loss";
        charts.push(chart);
        theme(chart);
    }
    function difference() { // of each run's losses from the first one's, at the steps that both have
        const sets = [];
        runs.slice(1).forEach((run, i) => Object.keys(run.differences).forEach((name) => {
            const list = run.differences[name][0].map((x, k) => ({ x: x, y: run.differences[name][1][k] })).filter((p) => typeof p.y === "number");
            const training = name === "train/loss";
            sets.push({ label: run.name + " − " + runs[0].name + ", " + word(name), data: list, raw: list, borderColor: color(i + 1), backgroundColor: color(i + 1), borderDash: training ? [] : [5, 3], borderWidth: training ? 1 : 2, pointRadius: training ? (list.length < 40 ? 2 : 0) : 3, pointStyle: name === "val/sampled_loss" ? "triangle" : "circle", smooths: training });
        }));
        return sets.filter((set) => set.data.length > 0);
    }
    // A metric that never changes is a line of a table.
    const constants = [];
    function constant(spec, sets) {
        const levels = sets.map((s) => s.data.every((p) => p.y === s.data[0].y) ? s.data[0].y : NaN);
        if (spec.id === "loss" || spec.id === "difference" || !levels.every((x) => Number.isFinite(x)))
            return false;
        constants.push([spec.title, sets.map((s, i) => (sets.length > 1 ? s.label + " " : "") + show(levels[i]) + (spec.constantUnit ? " " + spec.constantUnit : "")).join(", ")]);
        return true;
    }
    function constantTable() {
        if (constants.length === 0)
            return;
        const details = fold(document.getElementById("constant"), constants.length + (constants.length > 1 ? " metrics" : " metric") + " did not change: " + constants.map((c) => c[0].toLowerCase()).join(", "), false);
        const body = add(add(add(details, "div", null, { class: "wide" }), "table"), "tbody");
        constants.forEach((c) => { const line = add(body, "tr"); add(line, "th", c[0], { scope: "row" }); add(line, "td", c[1]); });
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
    // What metrics.jsonl calls by short names.
    const words = new Map([["train/loss", "training"], ["val/loss", "validation"], ["val/sampled_loss", "sampled validation"], ["val/accuracy", "validation"],
        ["val/sampled_accuracy", "sampled validation"], ["gradients/mean_norm", "mean"], ["gradients/max_norm", "largest"], ["experts/load_min", "least"],
        ["experts/load_max", "most"], ["fp8/most_saturated_share", "most saturated tensor"], ["fp8/most_underflow_share", "tensor with most underflow"],
        ["fp8/saturated_share", "all tensors"], ["fp8/underflow_share", "all tensors"]]);
    function word(name) {
        if (words.has(name))
            return words.get(name);
        if (name.startsWith("counterfactual/"))
            return name.split("/")[1];
        return name.replace(/^gradients\/norm\//, "").replace(/^experts\/layers\.\d+\/load\./, "expert ");
    }
    function title(name) { // of a metric that no chart below lists
        const text = name.replace(/\//g, ": ").replace(/_/g, " ");
        return text.charAt(0).toUpperCase() + text.slice(1);
    }
    const units = ["tokens", "examples", "images"];
    const formats = ["fp8", "fp8-block", "mxfp8", "mxfp4", "nvfp4"];
    const counterfactuals = [
        ["relative_error", "Operands in other formats", "mean relative error", "What each format would do to the operands of linear layers."],
        ["largest_relative_error", "Operands in other formats: the worst", "relative error"],
        ["underflow_share", "Operands in other formats: underflow", "share of non-zero values"],
        ["saturated_share", "Operands in other formats: saturation", "share of non-zero values"]];
    // Every chart but those of a run of its own: its metrics, in one unit.
    function specs() {
        const tokens = runs.every((r) => r.unit === "tokens");
        return [
            { id: "loss", title: "Loss", unit: tokens ? "nats/token" : "", names: ["train/loss", "val/sampled_loss", "val/loss"], smooth: true },
            { id: "difference", title: "Difference in loss", unit: tokens ? "nats/token" : "", sets: runs.length > 1 ? difference() : [], smooth: true, note: "From " + runs[0].name + ", at the steps that both runs logged. Below 0 is better than " + runs[0].name + "." },
            { id: "accuracy", title: "Accuracy", unit: "share of right classes", names: ["val/sampled_accuracy", "val/accuracy"] },
            { id: "lr", title: "Learning rate", unit: "", names: ["train/lr"] },
            { id: "norm", title: "Gradient norm", unit: "before clipping", names: ["gradients/total_norm"], log: true, smooth: true },
            { id: "clip", title: "Clip factor", unit: "of the gradients", names: ["gradients/clip_factor"], smooth: true },
            { id: "norms", title: "Gradient norms of the parameters", unit: "unscaled", names: ["gradients/mean_norm", "gradients/max_norm"], log: true, smooth: true },
            { id: "scale", title: "Loss scale", unit: "", sets: scaleSets(), log: true, note: runs.some((r) => r.skips.length > 0) ? "Crosses: steps that were skipped because a gradient was not finite." : "No step was skipped." },
            { id: "skipped", title: "Skipped steps", unit: "since the start", names: ["amp/skipped_steps"] },
            { id: "underflow", title: "FP16 underflow", unit: "share of non-zero gradients", names: ["amp/underflow_share"], note: "Values below 2^-14, where FP16 loses digits." },
            { id: "bad", title: "Bad steps", unit: "that the guard saw", names: ["guard/bad_steps"] },
            { id: "rollbacks", title: "Rollbacks", unit: "by the guard", names: ["guard/rollbacks"] },
            { id: "activation", title: "Largest activation", unit: "of those sampled", names: ["guard/largest_activation"], smooth: true },
            { id: "saturated", title: "8-bit saturation", unit: "share of steps", names: ["fp8/saturated_share", "fp8/most_saturated_share"] },
            { id: "changes", title: "Changes of 8-bit scales", unit: "since the last report", names: ["fp8/scale_changes"] },
            { id: "underflow8", title: "8-bit underflow", unit: "share of non-zero values", names: ["fp8/underflow_share", "fp8/most_underflow_share"] },
            ...counterfactuals.map((kind) => ({ id: kind[0], title: kind[1], unit: kind[2], names: formats.map((f) => "counterfactual/" + f + "/" + kind[0]), note: kind[3] })),
            ...units.map((unit) => ({ id: unit === "tokens" ? "throughput" : unit, title: "Throughput", unit: unit + "/s", names: ["perf/" + unit + "_per_second"], smooth: true })),
            { id: "step", title: "Time of a step", unit: "ms", names: ["perf/step_ms"], smooth: true },
            { id: "mfu", title: "Model FLOPs utilization", unit: "of the peak", names: ["perf/mfu"], smooth: true },
            { id: "flops", title: "Model FLOPs", unit: "TFLOP/s", names: runs.some((r) => Object.hasOwn(r.series, "perf/mfu")) ? [] : ["perf/model_tflops"], smooth: true },
            ...units.map((unit) => ({ id: "energy-" + unit, title: "Energy", unit: "joules/" + unit.slice(0, -1), names: ["perf/joules_per_" + unit.slice(0, -1)], smooth: true })),
            { id: "waits", title: "Waiting for data", unit: "ms of a step", names: ["perf/wait_ms"], smooth: true },
            { id: "memory", title: "Memory", unit: "MB on the device", constantUnit: "MB", sets: memorySets() },
            { id: "entropy", title: "Entropy of the experts' load", unit: "1: even", names: ["experts/load_entropy"], smooth: true },
            { id: "load", title: "Load of an expert", unit: "share of tokens", names: ["experts/load_min", "experts/load_max"], smooth: true },
            { id: "dropped", title: "Dropped tokens", unit: "", names: ["experts/dropped_tokens"] },
        ];
    }
    function memorySets() {
        const sets = lines(["perf/memory_bytes"]);
        sets.forEach((set) => { set.data = set.raw = set.data.map((p) => ({ x: p.x, y: p.y / 1e6 })); });
        return sets;
    }
    // Metrics that need no chart: those that the head or another chart says.
    const silent = ["val/best_loss", "val/best_sampled_loss", "train/tokens", "train/examples", "train/images", "amp/enabled", "amp/growth_tracker", "run/chance_loss", "perf/model_tflops", "amp/loss_scale", "perf/memory_bytes"];
    function drawAll() {
        const all = specs(), several = runs.length > 1, known = new Set(silent.concat(all.flatMap((spec) => spec.names || [])));
        const names = Array.from(new Set(runs.flatMap((r) => Object.keys(r.series))));
        all.forEach(draw);
        runs.forEach((run, i) => {
            if (run.histogram)
                draw({ id: "histogram" + i, title: "Gradients by magnitude" + (several ? ": " + run.name : ""), unit: "log₂ |gradient|", sets: histogramSets(run), type: "scatter", note: "Below 2^-25 FP16 makes zero of a value, below 2^-14 it loses digits." });
            const blocks = Object.keys(run.series).filter((n) => n.startsWith("gradients/norm/"));
            draw({ id: "blocks" + i, title: "Gradient norm by module" + (several ? ": " + run.name : ""), unit: "unscaled", names: blocks, only: run, log: true, smooth: true });
            const layers = new Map();
            Object.keys(run.series).forEach((n) => {
                const at = /^experts\/layers\.(\d+)\/load\.\d+$/.exec(n);
                if (at)
                    layers.set(at[1], (layers.get(at[1]) || []).concat(n));
            });
            layers.forEach((list, layer) => draw({ id: "layer" + layer + "-" + i, title: "Load of the experts of layer " + layer + (several ? ": " + run.name : ""), unit: "share of tokens", names: list, only: run, smooth: true }));
        });
        names.filter((n) => !known.has(n) && !/^(gradients\/norm\/|experts\/layers\.)/.test(n)).sort().forEach((name) =>
            draw({ id: name.replace(/[^a-z0-9]+/gi, "-"), title: title(name), unit: "", names: [name] }));
        constantTable();
    }

    // --- texts
    function fold(parent, head, open) {
        const details = add(parent, "details");
        details.open = open;
        add(details, "summary", head);
        return details;
    }
    // The newest sample of each run is open, beside those of the others; older ones are one fold away.
    function sampleOf(place, r) {
        const all = r.samples.map((s) => [s[0], (parent) => add(parent, "pre", s[1], { class: "text" })])
            .concat(r.pictures.map((p) => [p[0], (parent) => add(parent, "img", null, { src: p[1], alt: "given, true, predicted, difference at step " + p[0] })]))
            .sort((a, b) => b[0] - a[0]);
        if (all.length === 0)
            return;
        const box = add(place, "div"), what = r.pictures.length > 0 ? ": given, true, predicted, difference" : "";
        add(box, "h3", named(r, "step " + show(all[0][0], 0) + what));
        all[0][1](box);
        if (all.length === 1)
            return;
        const older = fold(box, all.length === 2 ? "an earlier one" : (all.length - 1) + " earlier ones", false);
        all.slice(1).forEach((s) => s[1](fold(older, "step " + show(s[0], 0), false)));
    }
    const named = (r, what) => (runs.length > 1 ? r.name + ": " : "") + what;
    function texts() {
        let tables = 0, configs = 0;
        runs.forEach((r) => {
            sampleOf(document.getElementById("samples"), r);
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
        document.getElementById("samples-section").hidden = document.getElementById("samples").children.length === 0;
        document.getElementById("precision-section").hidden = tables === 0;
        document.getElementById("config-section").hidden = configs === 0;
    }

    document.getElementById("title").textContent = data.title;
    document.getElementById("about").textContent = data.about;
    healths();
    facts();
    drawAll();
    texts();
    document.getElementById("smooth").addEventListener("input", (event) => charts.forEach((chart) => {
        if (!chart.smooths)
            return;
        chart.data.datasets.filter((set) => set.smooths !== false && set.raw).forEach((set) => { set.data = smoothed(set.raw, Number(event.target.value)); });
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
