// Chooses which samples stand side by side. Text reaches the page through textContent only.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.getElementById("samples");
  const bar = root.querySelector(".pick"), list = bar.querySelector("select"), set = bar.querySelector("fieldset");
  const other = bar.querySelector("[data-other]");
  const prompt = root.querySelector(".prompt"), replies = root.querySelector(".replies");
  const last = data.policies.length - 1;
  let turn = 0;

  function add(parent, tag, text, kind) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (kind) node.className = kind;
    parent.append(node);
    return node;
  }

  const groups = { regular: "Prompts at regular intervals", hacked: "Where gold falls behind proxy most" };
  for (const why of Object.keys(groups)) {
    const rows = data.prompts.map((row, place) => [row, place]).filter(([row]) => row.why === why);
    if (!rows.length) continue;
    const group = add(list, "optgroup");
    group.label = groups[why];
    for (const [row, place] of rows) {
      const line = row.text.replace(/\s*Assistant:\s*$/, "").replace(/^\s*Human:\s*/, "").replace(/\s+/g, " ");
      add(group, "option", row.id + " · " + line.slice(0, 90)).value = place;
    }
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
    if (reply.text) add(box, "p", reply.text);
    else add(box, "p", "empty response", "soft");
    const line = add(box, "div", undefined, "numbers");
    for (const key of ["gold", "proxy", "kl", "tokens"])
      add(line, "span", key + " " + (reply[key] === null ? "unscored" : reply[key]));
    for (const mark of reply.marks) add(line, "span", mark, "bad");
  }

  function show() {
    const row = data.prompts[Number(list.value)];
    let most = 1;
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
    list.value = (Number(list.value) + step + data.prompts.length) % data.prompts.length;
    turn = 0;
    show();
  }

  bar.hidden = false;
  list.addEventListener("change", () => { turn = 0; show(); });
  set.addEventListener("change", show);
  other.addEventListener("click", () => { turn += 1; show(); });
  for (const button of bar.querySelectorAll("[data-move]"))
    button.addEventListener("click", () => move(Number(button.dataset.move)));
  document.addEventListener("keydown", (event) => {
    const elsewhere = event.target !== document.body && !root.contains(event.target);
    if (elsewhere || event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  });
  show();
})();
