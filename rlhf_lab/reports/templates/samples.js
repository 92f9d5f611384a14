// Selects the samples that are shown side by side. Text is only inserted through textContent.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("samples");
  const bar = root.querySelector(".pick"), list = bar.querySelector("[data-prompt]"), set = bar.querySelector("fieldset");
  const other = bar.querySelector("[data-other]");
  const prompt = root.querySelector(".prompt"), replies = root.querySelector(".replies");
  const search = bar.querySelector("[type=search]"), filter = bar.querySelector("[data-filter]");
  const count = bar.querySelector("[data-count]");
  const last = data.policies.length - 1;
  let turn = 0, matching = [];

  function add(parent, tag, text, kind) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (kind) node.className = kind;
    parent.append(node);
    return node;
  }

  const groups = { regular: "Prompts", hacked: "Gold falls furthest behind proxy" };

  function gold(replies) {
    const known = replies.map((reply) => reply.gold).filter((value) => value !== null);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : NaN;
  }

  function matches(row) {
    const shown = [...set.querySelectorAll("input:checked")].map((box) => row.replies[Number(box.value)]);
    const kind = filter.value, words = search.value.trim().toLowerCase();
    if (kind === "gold" && !(shown.length > 1 && gold(shown[shown.length - 1]) < gold(shown[0]))) return false;
    if (kind === "hacked" && row.why !== "hacked") return false;
    if (["verbose", "garble", "cut off"].includes(kind) && !shown.flat().some((reply) => reply.marks.includes(kind)))
      return false;
    return !words || [row.text, ...shown.flat().map((reply) => reply.text)].join("\n").toLowerCase().includes(words);
  }

  function fill() {
    const before = list.value;
    matching = data.prompts.map((row, place) => place).filter((place) => matches(data.prompts[place]));
    list.replaceChildren();
    for (const why of Object.keys(groups)) {
      const places = matching.filter((place) => data.prompts[place].why === why);
      if (!places.length) continue;
      const group = add(list, "optgroup");
      group.label = groups[why];
      for (const place of places) {
        const row = data.prompts[place];
        const line = row.text.replace(/\s*Assistant:\s*$/, "").replace(/^\s*Human:\s*/, "").replace(/\s+/g, " ");
        add(group, "option", row.id + " · " + line.slice(0, 90)).value = place;
      }
    }
    if (matching.includes(Number(before)) && before !== "") list.value = before;
    count.textContent = matching.length + " of " + data.prompts.length;
    turn = 0;
    show();
  }
  data.policies.forEach((name, place) => {
    const label = add(set, "label");
    const box = add(label, "input");
    box.type = "checkbox";
    box.value = place;
    box.checked = last < 3 || place === 0 || place === last;
    label.append(" " + name);
  });

  function card(name, reply, count) {
    const box = add(replies, "div", undefined, "reply");
    add(box, "h3", count > 1 ? name + " (" + (turn % count + 1) + " of " + count + ")" : name);
    if (reply.sound) {
      const player = add(box, "audio");
      player.controls = true;
      player.src = reply.sound;
      player.setAttribute("aria-label", name);
    } else if (reply.text) add(box, "p", reply.text);
    else add(box, "p", "empty response", "soft");
    const line = add(box, "div", undefined, "numbers");
    for (const key of ["gold", "proxy", "kl", "tokens"])
      add(line, "span", key + " " + (reply[key] === null ? "unscored" : reply[key]));
    for (const mark of reply.marks) add(line, "span", mark, "bad");
  }

  function show() {
    const row = data.prompts[Number(list.value)];
    let most = 1;
    if (!matching.length) {
      prompt.textContent = "No prompt matches.";
      replies.replaceChildren();
      other.hidden = true;
      return;
    }
    prompt.textContent = row.text;
    replies.replaceChildren();
    for (const box of set.querySelectorAll("input:checked")) {
      const found = row.replies[Number(box.value)], name = data.policies[Number(box.value)];
      if (found.length) card(name, found[turn % found.length], found.length);
      most = Math.max(most, found.length);
    }
    other.hidden = most < 2;
  }

  function move(step) {
    if (!matching.length) return;
    const place = matching.indexOf(Number(list.value));
    list.value = matching[(place + step + matching.length) % matching.length];
    turn = 0;
    show();
  }

  bar.hidden = false;
  list.addEventListener("change", () => { turn = 0; show(); });
  set.addEventListener("change", fill);
  filter.addEventListener("change", fill);
  search.addEventListener("input", fill);
  other.addEventListener("click", () => { turn += 1; show(); });
  for (const button of bar.querySelectorAll("[data-move]"))
    button.addEventListener("click", () => move(Number(button.dataset.move)));
  document.addEventListener("keydown", (event) => {
    const elsewhere = event.target !== document.body && !root.contains(event.target);
    if (elsewhere || event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  });
  fill();
})();
