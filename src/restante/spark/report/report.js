// The page is complete without this script, which adds the theme, the choice of a queue, and the tooltip.
(() => {
  "use strict";
  const root = document.documentElement;
  const main = document.querySelector("main");

  // -- theme: that of the system until the user presses the button; in a frame, that of the page around it ----------
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const name = () => { button.textContent = isDark() ? "☀ Light" : "☾ Dark"; };
  const wear = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
    name();
  };
  const framed = window.parent !== window;
  button.hidden = framed;
  button.addEventListener("click", () => wear(isDark() ? "light" : "dark"));
  dark.addEventListener("change", name);
  // The dashboard names its theme in the address, and each later one in a message; nobody else is listened to.
  addEventListener("message", (event) => { if (framed && event.source === window.parent) wear(event.data); });
  wear(framed ? location.hash.replace("#theme-", "") : "");

  // -- one queue, or all -------------------------------------------------------------------------------------------
  const select = document.getElementById("queue");
  const panels = [...document.querySelectorAll(".panel")];
  function choose(id) {
    if (!panels.some((panel) => panel.id === id)) return;
    const queue = id.replace("queue-", "");
    for (const panel of panels) panel.hidden = panel.id !== id;
    for (const row of document.querySelectorAll("[data-q]")) {
      row.hidden = id !== "all" && !row.dataset.q.split(" ").includes(queue);
    }
    for (const list of document.querySelectorAll("[data-filtered]")) {
      list.classList.toggle("filtered-out", !list.querySelector("[data-q]:not([hidden])"));
    }
    select.value = id;
  }
  function follow() {
    const id = location.hash.slice(1);
    if (id === "all" || id.startsWith("queue-")) choose(id);
  }
  function pick(id) {
    // The address names the queue, so that users can share a link to it; the page does not scroll.
    history.replaceState(null, "", "#" + id);
    choose(id);
  }
  if (select) {
    document.querySelector("nav").hidden = false;
    choose("all");
    select.addEventListener("change", () => pick(select.value));
    for (const step of document.querySelectorAll("nav .steps button")) {
      step.addEventListener("click", () => {
        const to = select.selectedIndex + Number(step.dataset.by);
        pick(select.options[(to + select.options.length) % select.options.length].value);
      });
    }
    addEventListener("hashchange", follow);
    follow();
  }

  // -- tooltip -----------------------------------------------------------------------------------------------------
  const tip = document.getElementById("tip");
  const first = Number(main.dataset.first), step = Number(main.dataset.step), end = Number(main.dataset.end);
  const buckets = Number(main.dataset.buckets);
  const known = new WeakMap();
  const numbers = (path) => {
    if (!known.has(path)) known.set(path, path.dataset.values.split(",").map((text) => (text === "" ? null : Number(text))));
    return known.get(path);
  };
  const digits = (value, most) => value.toLocaleString("en", { maximumSignificantDigits: most });
  function span(seconds) {
    if (seconds === 0) return "0 s";
    if (seconds < 1) return digits(seconds * 1000, seconds < 0.01 ? 2 : 3) + " ms";
    if (seconds < 10) return digits(seconds, 2) + " s";
    const whole = Math.round(seconds);
    for (const [size, word, below, least] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
      if (whole < size) continue;
      const rest = Math.floor((whole % size) / below);
      return Math.floor(whole / size) + " " + word + (rest ? " " + rest + " " + least : "");
    }
    return whole + " s";
  }
  const words = {
    "seconds": span,
    "count": (value) => Math.round(value).toLocaleString("en"),
    "per-minute": (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : digits(value, 3)) + " / min",
    "share": (value) => digits(value * 100, value < 0.1 ? 2 : 3) + " %",
  };
  const months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
  const two = (number) => String(number).padStart(2, "0");
  const day = (at) => at.getUTCDate() + " " + months[at.getUTCMonth()];
  const hour = (at) => two(at.getUTCHours()) + ":" + two(at.getUTCMinutes());
  function when(bucket) {
    const from = new Date((first + bucket * step) * 1000);
    const to = new Date(Math.min(first + (bucket + 1) * step, end) * 1000);
    if (step === 60) return day(from) + " " + hour(from) + " UTC";
    if (step >= 86400) return day(from) + (step > 86400 ? " – " + day(to) : "") + " UTC";
    return day(from) + " " + hour(from) + "–" + hour(to) + " UTC";
  }

  let crossed = [];
  function leave() {
    tip.hidden = true;
    for (const line of crossed) line.remove();
    crossed = [];
  }
  function cross(plot, bucket) {
    for (const line of crossed) line.remove();
    const around = plot.closest(".charts") || plot.closest("ol");
    crossed = [...around.querySelectorAll(".plot")].map((crossedPlot) => {
      const line = document.createElement("div");
      line.className = "cross";
      line.style.left = ((bucket + 0.5) / buckets) * 100 + "%";
      crossedPlot.append(line);
      return line;
    });
  }
  function show(plot, bucket, x, y) {
    const time = document.createElement("time");
    time.textContent = when(bucket);
    const rows = [...plot.querySelectorAll("[data-values]")].flatMap((path) => {
      const value = numbers(path)[bucket];
      if (value === null || value === undefined || (path.classList.contains("storm") && !value)) return [];
      const row = document.createElement("div");
      const swatch = document.createElement("i");
      swatch.style.setProperty("--c", "var(--" + path.dataset.colour + ")");
      const label = document.createElement("span");
      label.textContent = path.dataset.name;
      const number = document.createElement("b");
      number.textContent = words[path.dataset.unit || plot.dataset.unit](value);
      row.append(swatch, label, number);
      return [row];
    });
    if (!rows.length) {
      rows.push(document.createElement("span"));
      rows[0].textContent = "no value";
    }
    tip.replaceChildren(time, ...rows);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
    tip.style.left = Math.max(6, left) + "px";
    tip.style.top = Math.max(6, Math.min(y - box.height / 2, innerHeight - box.height - 6)) + "px";
    cross(plot, bucket);
  }
  const within = (bucket) => Math.max(0, Math.min(buckets - 1, bucket));
  let at = buckets - 1;
  function point(event) {
    const plot = event.target.closest(".plot");
    if (!plot) return leave();
    const box = plot.getBoundingClientRect();
    at = within(Math.floor(((event.clientX - box.left) / box.width) * buckets));
    show(plot, at, event.clientX, event.clientY);
  }
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  document.addEventListener("pointerleave", leave);
  addEventListener("scroll", leave, { passive: true });
  document.addEventListener("keydown", (event) => {
    const plot = event.target.closest && event.target.closest(".plot");
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -buckets, End: buckets }[event.key];
    if (!plot || by === undefined) return;
    event.preventDefault();
    at = within(at + by);
    const box = plot.getBoundingClientRect();
    show(plot, at, box.left + ((at + 0.5) / buckets) * box.width, box.top + box.height / 2);
  });
  document.addEventListener("focusout", leave);
})();
