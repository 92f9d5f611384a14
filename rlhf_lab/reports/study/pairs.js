// Shows two jobs of a study side by side. Text is only inserted through textContent.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("pair-data").textContent);
  const root = document.getElementById("pairs"), bar = root.querySelector(".pick");
  const [a, b] = bar.querySelectorAll("select"), body = root.querySelector("tbody");
  const command = root.querySelector("code");

  function row(cells) {
    const line = document.createElement("tr");
    for (const text of cells) {
      const cell = document.createElement("td");
      cell.textContent = text;
      line.append(cell);
    }
    body.append(line);
  }

  function turned(gap) {
    return gap.replace(/^[+−]/, (sign) => (sign === "+" ? "−" : "+"));
  }

  function show() {
    const i = Number(a.value), j = Number(b.value), left = data.jobs[i], right = data.jobs[j];
    const tests = data.tests[i < j ? i + "," + j : j + "," + i] || [];
    body.replaceChildren();
    data.factors.forEach((name, place) => {
      if (left.settings[place] !== right.settings[place]) row([name, left.settings[place], right.settings[place], "", ""]);
    });
    data.metrics.forEach((name, place) => {
      const [gap, p] = (i !== j && tests[place]) || ["–", "–"];
      row([name, left.values[place], right.values[place], i < j ? gap : turned(gap), p]);
    });
    command.textContent = "python -m rlhf_lab compare " + [left, right].map((job) => data.folder + "/jobs/" + job.index).join(" ");
  }

  for (const list of [a, b])
    data.jobs.forEach((job, place) => {
      const option = document.createElement("option");
      option.value = place;
      option.textContent = "job " + job.index + ": " + data.factors.map((name, at) => name.split(".").pop() + " " + job.settings[at]).join(", ");
      list.append(option);
    });
  a.value = 0;
  b.value = 1;
  bar.hidden = false;
  a.addEventListener("change", show);
  b.addEventListener("change", show);
  show();
})();
