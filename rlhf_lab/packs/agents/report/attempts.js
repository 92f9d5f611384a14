// Hides the attempts that a reader has not chosen. Without it all of them are shown.
(function () {
  "use strict";
  const root = document.getElementById("attempts"), bar = root.querySelector(".pick");
  const lists = [...bar.querySelectorAll("select")], search = bar.querySelector("input");
  const attempts = [...root.querySelectorAll(".attempt")], count = bar.querySelector("[data-count]");
  let texts = null; // made at the first search: a page may hold megabytes

  function show() {
    const words = search.value.trim().toLowerCase();
    if (words && !texts) texts = attempts.map((attempt) => attempt.textContent.toLowerCase());
    let shown = 0;
    attempts.forEach((attempt, place) => {
      const chosen = lists.every((list) => !list.value || attempt.dataset[list.dataset.by] === list.value);
      attempt.hidden = !(chosen && (!words || texts[place].includes(words)));
      if (!attempt.hidden) shown += 1;
    });
    count.textContent = shown + " shown";
  }

  bar.hidden = false;
  for (const list of lists) list.addEventListener("change", show);
  search.addEventListener("input", show);
  show();
})();
