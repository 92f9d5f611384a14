// Replaces static figures by Vega views with tooltips, filtering legends and zoom, which also work by keyboard.
// Text is inserted through textContent and Vega's SVG only; both escape it.
(async function () {
  "use strict";
  if (!window.DecompressionStream) return; // old browsers keep the static figures
  const packed = atob(document.getElementById("vega").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const script = document.createElement("script");
  script.textContent = await new Response(
    new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))
  ).text();
  document.head.append(script);

  const WIDEST = 640, NEAR = 40, FAINT = 0.5;
  const help = document.getElementById("chart-help");
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  document.body.append(tip);

  // Marks that have a tooltip, with their position inside the figure; marks of deselected series are left out.
  function readable(view) {
    const found = [];
    function walk(group, left, top) {
      for (const mark of group.items) {
        if (mark.marktype === "group") {
          for (const inner of mark.items) walk(inner, left + (inner.x || 0), top + (inner.y || 0));
          continue;
        }
        for (const item of mark.items) {
          const x = (item.x || 0) + (item.width || 0) / 2, y = (item.y || 0) + (item.height || 0) / 2;
          const inside = x >= -1 && x <= group.width + 1 && y >= -1 && y <= group.height + 1;
          if (item.tooltip && item.opacity > FAINT && item.defined !== false && inside)
            found.push({ x: left + x, y: top + y, facts: item.tooltip });
        }
      }
    }
    const [left, top] = view.origin();
    for (const item of view.scenegraph().root.items) walk(item, left + (item.x || 0), top + (item.y || 0));
    return found;
  }

  function say(facts, aloud) {
    const list = document.createElement("dl");
    for (const [title, text] of Object.entries(facts)) {
      const name = document.createElement("dt"), value = document.createElement("dd");
      name.textContent = title;
      value.textContent = text;
      list.append(name, value);
    }
    tip.setAttribute("aria-live", aloud ? "polite" : "off");
    tip.replaceChildren(list);
    tip.hidden = false;
  }

  // Limits of the axes that the parameter `zoom` of the specification controls.
  function limits(view) {
    const names = Object.keys(view.getState({ signals: (name) => /^zoom_[xy]$/.test(name) }).signals);
    return names.map((name) => [name, view.scale(name.slice(-1)).domain()]);
  }

  // Zoom by a factor around the centre; 0 restores the initial limits.
  function zoom(view, factor, beginning) {
    if (!factor) for (const [name, whole] of beginning) view.signal(name, whole);
    else for (const [name, [low, high]] of limits(view)) {
      const middle = (low + high) / 2, half = ((high - low) / 2) * factor;
      view.signal(name, [middle - half, middle + half]);
    }
    return view.runAsync();
  }

  // Turn legend names into buttons. Vega recreates them on every change, so this runs after each change.
  function nameButtons(figure) {
    for (const label of figure.querySelectorAll(".live .role-legend-label text")) {
      label.setAttribute("tabindex", "0");
      label.setAttribute("role", "button");
    }
  }

  async function bring(figure) {
    const still = figure.querySelector("svg");
    const specification = JSON.parse(figure.querySelector("script").textContent);
    const live = document.createElement("div");
    const room = () => Math.min(figure.clientWidth, WIDEST);
    if (!room()) return false; // inside a collapsed element
    live.className = "live";
    live.hidden = true;
    figure.append(live);
    const { view } = await window.vegaEmbed(live, { ...specification, width: room() }, {
      actions: false, defaultStyle: false, hover: false, renderer: "svg", tooltip: () => {},
    });
    const drawn = live.querySelector("svg");
    for (const name of ["class", "role"]) drawn.setAttribute(name, still.getAttribute(name));
    drawn.prepend(...still.querySelectorAll(":scope > title, :scope > desc"));
    still.remove();
    live.hidden = false;
    figure.setAttribute("aria-describedby", "chart-help");
    nameButtons(figure);

    const ring = document.createElement("div");
    ring.className = "ring";
    ring.hidden = true;
    figure.append(ring);
    const beginning = limits(view);
    let at = -1;

    function hide() {
      at = -1;
      ring.hidden = tip.hidden = true;
    }
    function show(item, aloud) {
      const frame = drawn.getBoundingClientRect(), outer = figure.getBoundingClientRect();
      ring.style.left = frame.left - outer.left + figure.scrollLeft + item.x + "px";
      ring.style.top = frame.top - outer.top + item.y + "px";
      ring.hidden = false;
      say(item.facts, aloud);
      const x = frame.left + item.x, y = frame.top + item.y, wide = document.documentElement.clientWidth;
      const left = Math.min(Math.max(4, x + 12), wide - tip.offsetWidth - 4);
      const below = y - tip.offsetHeight - 12 < 0;
      tip.style.left = left + scrollX + "px";
      tip.style.top = (below ? y + 12 : y - tip.offsetHeight - 12) + scrollY + "px";
    }
    function pointed(event) {
      const frame = drawn.getBoundingClientRect();
      const x = event.clientX - frame.left, y = event.clientY - frame.top;
      const away = (item) => Math.hypot(item.x - x, item.y - y);
      const [nearest] = readable(view).sort((a, b) => away(a) - away(b));
      if (nearest && away(nearest) < NEAR) show(nearest, false);
      else hide();
    }
    async function changed(done) {
      await done;
      hide();
      nameButtons(figure);
    }

    live.addEventListener("pointermove", pointed);
    live.addEventListener("pointerdown", pointed);
    live.addEventListener("click", () => changed(view.runAsync()));
    figure.addEventListener("pointerleave", hide);
    figure.addEventListener("focusout", hide);
    live.addEventListener("dblclick", () => changed(zoom(view, 0, beginning)));
    figure.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const key = event.key;
      if (event.target !== figure) { // a name in the legend
        if (key !== "Enter" && key !== " ") return;
        event.preventDefault();
        event.target.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        return;
      }
      const items = readable(view), factor = { "+": 1 / 1.5, "=": 1 / 1.5, "-": 1.5, 0: 0 }[key];
      if (key === "Escape") hide();
      else if (factor !== undefined) changed(zoom(view, factor, beginning));
      else if ((key === "ArrowRight" || key === "ArrowLeft") && items.length) {
        at = at < 0 ? (key === "ArrowRight" ? 0 : items.length - 1)
          : (at + (key === "ArrowRight" ? 1 : -1) + items.length) % items.length;
        show(items[at], true);
      } else return;
      event.preventDefault();
    });
    let width = room();
    new ResizeObserver(() => {
      if (!room() || room() === width) return;
      width = room();
      changed(view.width(width).runAsync());
    }).observe(figure);
    return true;
  }

  for (const figure of document.querySelectorAll(".chart")) {
    if (await bring(figure)) continue;
    const details = figure.closest("details");
    if (details) details.addEventListener("toggle", () => bring(figure), { once: true });
  }
  if (help) help.hidden = false;
  document.documentElement.dataset.charts = "live"; // tells tests that all figures have been replaced
})();
