"""The page of a scene: what is in it, and, in a real browser, what it shows and does."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import shapely
from numpy.typing import NDArray
from tests.browser import HOSTILE, Document, chromium, needs_browser, opened, with_script

from wayfix.errors import InvalidOption, StorageFailed
from wayfix.geo.boxes import WorldBox
from wayfix.html import embedded_json
from wayfix.scene.landmark import Landmark
from wayfix.scene.network import FootNode, FootWay, Network, Place
from wayfix.scene.scene import Scene
from wayfix.scene_map.page import scene_data, write_map

NAMES = (
    HOSTILE,
    "<img src=x onerror=report('x')>",
    "🏰 Café Émile",
    "בית הספר",
    "{{data}} __proto__ \"'\\ \u2028 &lt;",
)


def pictured(
    page: Path, fragment: str = "", size: str = "1000,700", *options: str
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A screenshot, RGB, and the part of it that the scene's photo covers.

    Chromium gives the window its size just before the picture is taken, so the page tells where the photo then lies.
    """
    target = page.with_suffix(".png")
    script = """
      new MutationObserver(() => console.log(`photo=${page.dataset.photo};`)).observe(page, { attributes: true });
    """
    telling = with_script(page, script, "telling.html")
    options = ("--enable-logging=stderr", f"--window-size={size}", f"--screenshot={target}", *options)
    said = re.findall(r"photo=([-\d.,]+);", chromium(telling, fragment, *options).stderr)
    shot = cv2.cvtColor(cv2.imread(str(target)), cv2.COLOR_BGR2RGB)
    left, top, width, height = (round(float(v)) for v in said[-1].split(","))
    return shot, shot[max(0, top) : top + height, max(0, left) : left + width]


@pytest.fixture
def own_town(town_folder: Path) -> Iterator[Scene]:
    """The town for a test that changes what is in it."""
    with Scene(town_folder) as scene:
        yield scene


@pytest.fixture(scope="module")
def page(town: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("map") / "town.html"
    write_map(town, target)
    return target


@pytest.fixture(scope="module")
def data(town: Scene) -> dict[str, Any]:
    return scene_data(town, 3000)


# ---- what is in the page


def test_the_page_needs_nothing_from_outside(page: Path) -> None:
    source = page.read_text(encoding="utf-8")
    markup = re.sub(r"(?s)<script type=\"application/json\".*?</script>", "", source)
    assert "default-src 'none'" in markup
    assert not re.search(r"https?://|<link|\bsrc\s*=\s*[\"']|@import|url\(", markup)
    assert "{{" not in markup


def test_no_text_breaks_out_of_the_data() -> None:
    text = embedded_json({"name": HOSTILE + "<!--"})
    assert "<" not in text and text.isascii()
    assert json.loads(text) == {"name": HOSTILE + "<!--"}


def test_the_photo_is_a_jpeg_of_the_size_asked_for(town: Scene) -> None:
    for asked, expected in ((200, (133, 200)), (3000, (320, 480))):
        mime, _, content = scene_data(town, asked)["photo"].partition(";base64,")
        image = cv2.imdecode(np.frombuffer(base64.b64decode(content), np.uint8), cv2.IMREAD_COLOR_RGB)
        assert mime == "data:image/jpeg" and image.shape[:2] == expected
        whole = cv2.resize(town.bev.read(0, 0, 0, 480, 320), expected[::-1], interpolation=cv2.INTER_AREA)
        assert np.abs(image.astype(int) - whole).mean() < 3


def test_interpolated_degrees_are_as_good_as_they_say(town: Scene, data: dict[str, Any]) -> None:
    box, degrees = town.extent, data["lonlat"]
    corners = [(box.min_x, box.min_y), (box.max_x, box.min_y), (box.min_x, box.max_y), (box.max_x, box.max_y)]
    for lon, lat, corner in zip(degrees["lon"], degrees["lat"], corners, strict=True):
        assert (lon, lat) == pytest.approx(town.frame.lonlat(*corner), abs=1e-10)
    middle = town.frame.lonlat(*box.center)
    assert np.mean(degrees["lat"]) == pytest.approx(middle[1], abs=degrees["error"] / 111_000 + 1e-12)
    assert 0 <= degrees["error"] < 0.01


def test_the_cursor_grid_holds_the_heights(town: Scene, data: dict[str, Any], things: dict[str, WorldBox]) -> None:
    for layer in data["heights"]:
        probe, grid = layer["probe"], town.dsm if layer["key"] == "dsm" else town.dtm
        cells = np.frombuffer(base64.b64decode(probe["cells"]), "<u2").reshape(probe["rows"], probe["columns"])
        heights = np.where(cells > 0, probe["low"] + (cells - 1.0) * probe["step"], np.nan)
        assert grid is not None
        np.testing.assert_allclose(heights, grid.window(grid.extent), atol=0.006)
        west, south, east, north = layer["bounds"]
        assert (west, south) == (0, 0) and (east, north) == pytest.approx((120, 80))
    assert {layer["key"] for layer in data["heights"]} == {"dsm", "dtm"}


def test_shapes_keep_holes_parts_and_places(own_town: Scene) -> None:
    x, y = own_town.extent.min_x, own_town.extent.min_y
    ring = shapely.box(x, y, x + 10, y + 10) - shapely.box(x + 4, y + 4, x + 6, y + 6)
    lines = shapely.MultiLineString([[(x, y), (x + 1, y)]])
    nested = shapely.GeometryCollection([lines, shapely.Point(x + 2.345, y + 3)])
    vars(own_town)["landmarks"] = (Landmark("ring", "park", ring), Landmark("nested", "site", nested))
    first, second = scene_data(own_town, 64)["landmarks"]
    assert len(first["rings"]) == 2 and "points" not in first
    assert [shapely.LinearRing(np.reshape(r, (-1, 2))).is_ccw for r in first["rings"]] == [True, False]
    assert ring.contains(shapely.Point(x + first["at"][0] / 100, y + first["at"][1] / 100))
    assert second["lines"] == [[0, 0, 100, 0]]
    assert second["points"] in ([[234, 300]], [[235, 300]])


def test_a_grid_without_any_height_is_no_layer(own_town: Scene) -> None:
    assert own_town.dsm is not None
    own_town.dsm.window = lambda _: np.full((160, 240), np.nan, np.float32)  # type: ignore[method-assign]
    assert [layer["key"] for layer in scene_data(own_town, 64)["heights"]] == ["dtm"]


def test_large_heights_are_read_in_strips(town: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wayfix.scene_map.rasters.HEIGHT_LONG_SIDE_PX", 100)
    at_once = scene_data(town, 64)["heights"]
    monkeypatch.setattr("wayfix.scene_map.rasters._STRIP_CELLS", 1000)
    assert scene_data(town, 64)["heights"] == at_once


def test_sizes_and_paths_that_cannot_be_are_refused(town: Scene, tmp_path: Path) -> None:
    for size in (0, 63, 100_000):
        with pytest.raises(InvalidOption, match="64 to 8192 pixels"):
            write_map(town, tmp_path / "map.html", size)
    with pytest.raises(InvalidOption, match="folder does not exist"):
        write_map(town, tmp_path / "missing" / "map.html")
    with pytest.raises(StorageFailed, match="cannot write"):
        write_map(town, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_page_of_a_city_is_small(small_city_scene: Scene, tmp_path: Path) -> None:
    write_map(small_city_scene, tmp_path / "city.html")
    assert (tmp_path / "city.html").stat().st_size < 3e6


# ---- in a browser


@needs_browser
def test_the_page_tells_what_the_scene_is(page: Path, town: Scene) -> None:
    document = opened(page)
    assert document.state["landmarks"] == str(len(town.landmarks))
    assert document.state["layers"] == "photo,landmarks,names"
    for fact in ("town", "3, imported", "EPSG:32631", "local", "2024-05-01", "© OpenStreetMap", "approximate"):
        assert fact in document.text, fact
    side = "left" if town.manifest.convergence_deg > 0 else "right"
    assert f"true {abs(town.manifest.convergence_deg):.2f}° {side}" in document.text
    assert "Red Hall" in document.names and "8 found" in document.text


@needs_browser
def test_the_map_shows_the_photo(page: Path, town: Scene) -> None:
    _, shown = pictured(page, "#layers=photo")
    assert shown.shape[1] > 500
    photo = cv2.resize(town.bev.read(0, 0, 0, 480, 320), shown.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    away = np.abs(shown.astype(int) - photo).mean(axis=2)
    assert np.mean(away < 12) > 0.9  # buttons, arrow, bar and credit cover the rest


@needs_browser
def test_heights_are_coloured_and_unknown_ones_transparent(page: Path) -> None:
    _, shown = pictured(page, "#layers=dsm&opacity=100")
    metres = shown.shape[1] / 120

    def color(x: float, y: float) -> NDArray[np.int_]:
        return shown[round((80 - y) * metres), round(x * metres)].astype(int)

    around = np.array([0xE6, 0xE9, 0xEC])
    school, low_ground, unknown = color(89, 15), color(60, 73), color(113, 7)
    assert np.abs(unknown - around).max() <= 3
    assert school[0] > school[2] + 50, "high is red"
    assert low_ground[2] > low_ground[0], "low is blue"


@needs_browser
@pytest.mark.parametrize(
    ("wanted", "name", "height"),
    [("red hall", "Red Hall", "DSM ≈ 59.0 m, DTM ≈ 50.0 m"), ("Town House", "Red Hall", "59.0"), ("nowhere", "", "")],
)
def test_the_address_finds_a_landmark(page: Path, wanted: str, name: str, height: str) -> None:
    document = opened(page, f"#find={wanted.replace(' ', '%20')}")
    assert document.state.get("selected", "") == name
    assert height in document.text
    assert ("0 found" in document.text) == (not name)


@needs_browser
def test_hostile_and_foreign_names_are_text(own_town: Scene, tmp_path: Path) -> None:
    x, y = own_town.extent.center
    vars(own_town)["landmarks"] = [Landmark(name, HOSTILE, shapely.Point(x, y), (HOSTILE,)) for name in NAMES]
    own_town.manifest = own_town.manifest.model_copy(
        update={"id": "</title>" + HOSTILE, "attribution": (HOSTILE,), "vertical_datum": HOSTILE}
    )
    write_map(own_town, tmp_path / "map.html")
    document = opened(tmp_path / "map.html", "#find=cafe")
    assert "hacked" not in document.state and document.scripts == 5
    assert document.state["selected"] == "🏰 Café Émile"
    assert set(opened(tmp_path / "map.html").names) == set(NAMES)


@needs_browser
def test_footways_and_places_are_drawn(own_town: Scene, tmp_path: Path) -> None:
    x, y = own_town.extent.min_x, own_town.extent.min_y
    walk = shapely.LineString([(x + 10, y + 10), (x + 50, y + 30)])
    stairs = shapely.LineString([(x + 50, y + 30), (x + 60, y + 30)])
    ways = (
        FootWay(1, (1, 2), walk, "footway", name="Long Walk", surface="gravel", width_m=2.5),
        FootWay(2, (2, 3), stairs, "steps"),
    )
    nodes = (FootNode(2, x + 50, y + 30, "gate", wheelchair="no"), FootNode(3, x + 60, y + 30))
    places = (Place("node/9", "amenity=pharmacy", x + 30, y + 60, "Corner Pharmacy"),)
    vars(own_town).update(network=Network(nodes, ways), places=places)
    write_map(own_town, tmp_path / "map.html")
    script = """
      const said = feature => describe(feature).map(part => part.textContent).join(" / ");
      page.dataset.said = [featureAt(30, 20, 2), featureAt(50, 30, 2), featureAt(30, 60, 2)].map(said).join(" | ");
    """
    document = opened(with_script(tmp_path / "map.html", script, "asked.html"))
    assert document.state["layers"] == "photo,ways,nodes,places,landmarks,names"
    assert (document.state["ways"], document.state["drawn-ways"]) == ("2", "2")
    for text in ("footway (1)", "steps (1)", "Footways (2)", "Barriers, crossings (1)", "Places (1)"):
        assert text in document.text, text
    assert document.state["said"].split(" | ") == [
        "Long Walk / footway / width: 2.5 m · surface: gravel",
        "gate / wheelchair: no",
        "Corner Pharmacy / amenity=pharmacy",
    ]


@needs_browser
def test_pointers_wheel_and_keys_move_the_map(page: Path) -> None:
    script = """
      const log = {}, scale = view.scale;
      canvas.setPointerCapture = () => {};
      const send = (type, x, y, id = 1) => canvas.dispatchEvent(new PointerEvent(type, {
        pointerId: id, pointerType: "touch", clientX: view.left + x, clientY: view.top + y, bubbles: true }));
      const key = name => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
      const click = (x, y) => { send("pointerdown", x, y); send("pointerup", x, y); };
      click(toX(30), toY(62));
      log.clicked = page.dataset.selected;
      key("Escape");
      log.after_escape = page.dataset.selected || "";
      send("pointerdown", 200, 200); send("pointermove", 260, 180); send("pointerup", 260, 180);
      log.dragged = [60 - view.x, 40 - view.y].map(v => Math.round(v * scale));
      log.still_none = page.dataset.selected || "";
      key("0");
      send("pointerdown", 300, 200, 1); send("pointerdown", 400, 200, 2);
      const under = [worldX(350), worldY(200)];
      send("pointermove", 250, 200, 1); send("pointermove", 450, 200, 2);
      send("pointerup", 250, 200, 1); send("pointerup", 450, 200, 2);
      log.pinched = [view.scale / scale, toX(under[0]) - 350, toY(under[1]) - 200].map(v => +v.toFixed(3));
      key("0");
      const held = [worldX(350), worldY(200)];
      const at = { clientX: view.left + 350, clientY: view.top + 200 };
      canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, ...at }));
      log.grew = view.scale > scale * 1.3;
      log.wheeled = [ toX(held[0]) - 350, toY(held[1]) - 200].map(v => +v.toFixed(3));
      key("0"); key("+"); key("ArrowRight");
      log.keys = [view.scale > scale, view.x > 60];
      page.dataset.log = JSON.stringify(log);
    """
    log = json.loads(opened(with_script(page, script, "moved.html")).state["log"])
    assert log["clicked"] == "Red Hall" and log["after_escape"] == "" and log["still_none"] == ""
    assert log["dragged"] == [60, 20]
    assert log["pinched"] == [2, 0, 0]
    assert log["wheeled"] == pytest.approx([0, 0], abs=1)  # an event's place is in whole pixels
    assert log["grew"]
    assert log["keys"] == [True, True]


@needs_browser
def test_the_page_fits_a_phone_and_the_dark(page: Path) -> None:
    script = """
      window.addEventListener("resize", () => {
        const fits = page.scrollWidth <= innerWidth && page.scrollHeight <= innerHeight;
        document.body.style.visibility = fits && innerWidth === 360 ? "" : "hidden";
      });
    """
    phone = with_script(page, script, "phone.html")
    light, map_of_light = pictured(phone, "", "360,740")
    dark, _ = pictured(phone, "", "360,740", "--blink-settings=preferredColorScheme=0")
    assert light.shape == dark.shape == (740, 360, 3)
    assert np.median(light[-60:]) > 200 and np.median(dark[-60:]) < 60
    assert map_of_light.shape[1] > 250 and np.ptp(light[-300:]) > 150, "there is text"


@needs_browser
def test_a_scene_of_a_photo_only_has_a_page(bare_town: Scene, tmp_path: Path) -> None:
    write_map(bare_town, tmp_path / "map.html")
    document = opened(tmp_path / "map.html")
    assert document.state["layers"] == "photo" and document.state["landmarks"] == "0"
    assert "no named places" in document.text and "DSM" not in document.text


@needs_browser
def test_a_fault_in_the_page_is_told(page: Path) -> None:
    broken = page.with_name("broken.html")
    broken.write_text(
        page.read_text(encoding="utf-8").replace("data:image/jpeg;base64,/9j/", "data:image/jpeg;base64,AAAA")
    )
    document = Document(chromium(broken, "", "--dump-dom").stdout)
    assert "cannot be decoded" in document.state["error"] and "This page has a fault" in document.text
