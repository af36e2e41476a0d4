// Draws the figures of the page in the colours of the reader's theme: each when it comes into view (or is
// printed), and those that were drawn once more when the theme changes.
(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = figures.map((_, index) => document.getElementById("plot-" + index));
  const drawn = new Set();
  const narrow = innerWidth < 700;
  const config = { // without the button that uploads the data to somebody's cloud
    showSendToCloud: false, plotlyServerURL: "", displaylogo: false, responsive: true,
    displayModeBar: narrow ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const frame = {
    font: { family: "system-ui, sans-serif", size: 13, color: "--ink" }, hoverlabel: { align: "left" },
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", hovermode: "closest",
    modebar: { bgcolor: "transparent", color: "--muted", activecolor: "--ink" },
    margin: { l: narrow ? 48 : 64, r: narrow ? 12 : 48, t: 24, b: 48 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
  };
  const axis = { gridcolor: "--rule", linecolor: "--rule", zeroline: false, automargin: true };

  function resolve(value, style) { // "--ink" becomes the colour that the style sheet gives it
    if (typeof value === "string") return value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    if (Array.isArray(value)) return value.map((item) => resolve(item, style));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, style)]));
  }

  function draw(index) {
    const layout = { ...frame, ...figures[index].layout };
    layout.margin = { ...frame.margin, ...layout.margin };
    for (const name in layout) if (/^[xy]axis\d*$/.test(name)) layout[name] = { ...axis, ...layout[name] };
    const style = getComputedStyle(document.documentElement);
    Plotly.react(places[index], resolve(figures[index].data, style), resolve(layout, style), config);
    drawn.add(index);
  }

  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const index = places.indexOf(entry.target);
      if (entry.isIntersecting && !drawn.has(index)) draw(index);
    }
  }, { rootMargin: "300px" });
  places.forEach((place) => watch.observe(place));
  addEventListener("beforeprint", () => figures.forEach((_, index) => drawn.has(index) || draw(index)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
})();
