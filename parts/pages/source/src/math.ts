// TeX as MathML, which browsers set themselves: no fonts.
import temml from "temml";

/** Set the formula of an element's `data-tex` in it; a formula that cannot be read stays as text. */
export function setMath(place: HTMLElement): void {
  const { tex, display } = place.dataset;
  if (tex === undefined) return;
  try {
    const mathml = temml.renderToString(tex, {
      displayMode: display === "true",
      trust: false,
      throwOnError: true,
      maxSize: [50, 50],
      maxExpand: 500,
    });
    // The page's policy allows no style attribute; the same through the CSSOM is allowed.
    place.innerHTML = mathml.replaceAll(' style="', ' data-look="');
    for (const part of place.querySelectorAll<HTMLElement>("[data-look]")) {
      part.style.cssText = part.dataset.look!;
      delete part.dataset.look;
    }
    place.querySelector("math")?.setAttribute("aria-label", tex);
  } catch {
    place.classList.add("unset");
  }
}
