for (const moves of document.querySelectorAll(".moves")) {
  const frames = JSON.parse(moves.dataset.frames);
  const [button, slider, output, news] = ["button", "input", "output", ".news"].map((name) => moves.querySelector(name));
  const svg = moves.parentElement.querySelector("svg");
  const edges = svg.querySelector(".edges");
  const nodes = svg.querySelectorAll(".nodes > g");
  let timer = null;
  const show = () => {
    const at = Number(slider.value);
    const frame = frames[at];
    let joined = at;
    while (frames[joined].edges === null) joined -= 1;
    edges.replaceChildren(...frames[joined].edges.map(([path, width, came]) => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
      line.setAttribute("d", path);
      line.setAttribute("stroke-width", width);
      if (came) line.setAttribute("class", "came");
      return line;
    }));
    nodes.forEach((node, party) => {
      node.setAttribute("fill", frame.fill[party]);
      node.querySelector("tspan").textContent = frame.value[party];
    });
    output.textContent = frame.round;
    news.textContent = frame.news;
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  };
  button.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (Number(slider.value) === frames.length - 1) slider.value = 0;
    show();
    button.textContent = "Stop";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      show();
      if (Number(slider.value) === frames.length - 1) stop();
    }, 400);
  });
  slider.addEventListener("input", () => { stop(); show(); });
  moves.hidden = false;
}
