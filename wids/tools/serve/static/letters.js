// Text out of a shard: letters that cannot be seen, or that turn the order of others around, are shown by their number.
import { make } from "./common.js";

const ODD = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/u;
const MOST = 2000; // odd letters that get an element of their own

/** The parts of a text, for `append`. */
export function letters(text) {
  const parts = [];
  let plain = "";
  let left = MOST;
  for (const letter of text) {
    if (left > 0 && ODD.test(letter) && letter !== "\r") {
      if (plain) parts.push(plain);
      plain = "";
      left -= 1;
      const number = letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      parts.push(make("span", { class: "odd", title: `U+${number}` }, number));
    } else plain += letter;
  }
  if (plain) parts.push(plain);
  return parts;
}
