// Hides the attempts that the reader's filters exclude. Without this script all attempts are shown.
(function () {
  "use strict";
  const root = document.getElementById("attempts"), bar = root.querySelector(".pick");
  const lists = [...bar.querySelectorAll("select")], search = bar.querySelector("input");
  const attempts = [...root.querySelectorAll(".attempt")], count = bar.querySelector("[data-count]");
  let texts = null; // computed at the first search, because a page may contain megabytes

  function show() {
    const words = search.value.trim().toLowerCase();
    if (words && !texts) texts = attempts.map((attempt) => attempt.textContent.toLowerCase());
    let shown = 0;
    attempts.forEach((attempt, index) => {
      const chosen = lists.every((list) => !list.value || attempt.dataset[list.dataset.by] === list.value);
      attempt.hidden = !(chosen && (!words || texts[index].includes(words)));
      if (!attempt.hidden) shown += 1;
    });
    count.textContent = shown + " shown";
  }

  // A link such as attempts.html#verdict=wrong chooses the value of a list.
  function choose() {
    const [name, value] = location.hash.slice(1).split("=");
    const list = lists.find((list) => list.dataset.by === name);
    if (!list || ![...list.options].some((option) => option.value === value)) return;
    list.value = value;
    show();
    root.scrollIntoView();
  }

  bar.hidden = false;
  for (const list of lists) list.addEventListener("change", show);
  search.addEventListener("input", show);
  window.addEventListener("hashchange", choose);
  show();
  choose();
})();
