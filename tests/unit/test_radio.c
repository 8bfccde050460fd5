// Made-up radio maps: the formulas at values that their papers give, geometry that can be checked by hand, and the same
// bytes whatever the threads and the number of maps.
// Seen to fail with: no losses of walls; the transmitter drawn anywhere; a city that depends on the thread.
#include <math.h>

#include "test.h"
#include "tools/radio/radio.h"
#include "io/file.h"

enum { SIZE = 64 };

TEST(test_formulas) {
    // ITU-R P.525-4: 92.4 + 20 log f (GHz) + 20 log d (km)
    assert_true(fabs(mz_free_space_loss(1000) - (92.4 + 20 * log10(5.9))) < 1e-9);
    assert_true(fabs(mz_free_space_loss(20) - mz_free_space_loss(10) - 20 * log10(2)) < 1e-9);
    // ITU-R P.526-15, figure 9: 6 dB at 0, about 13 + 20 log nu far behind the edge, nothing at -0.78.
    assert_true(fabs(mz_knife_edge_loss(0) - 6.03) < 0.01);
    assert_true(fabs(mz_knife_edge_loss(10) - 33) < 0.2);
    assert_true(mz_knife_edge_loss(-0.78) == 0 && mz_knife_edge_loss(-0.77) < 0.1);
    for (int gray = 1; gray < 256; gray++)
        assert_int_equal(mz_radio_gray(mz_radio_loss(gray)), gray);
}

static void map_of(const mz_city *city, mz_point from, uint8_t *buildings, uint8_t *out) {
    mz_field *field;
    mz_city_draw(city, SIZE, buildings);
    assert_int_equal(mz_field_make(city, SIZE, buildings, &field), MEZZO_OK);
    assert_int_equal(mz_field_map(field, from, out), MEZZO_OK);
    mz_field_free(field);
}

TEST(test_field) {
    uint8_t buildings[SIZE * SIZE], map[SIZE * SIZE];
    const mz_city open = {.extent = SIZE};
    const mz_point from = {10.5, 32};
    map_of(&open, from, buildings, map);
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++) {
            const double far = hypot(x + 0.5 - from.x, y + 0.5 - from.y);
            assert_int_equal(map[y * SIZE + x], mz_radio_gray(mz_free_space_loss(far)));
        }
    // One house in the middle, the transmitter in front of it: the same above and below.
    mz_polygon house = {.n = 4, .p = {{30, 22}, {42, 22}, {42, 42}, {30, 42}}, .wall = 16.1};
    const mz_city one = {.extent = SIZE, .building = &house, .n = 1};
    map_of(&one, from, buildings, map);
    for (int y = 0; y < SIZE; y++)
        for (int x = 0; x < SIZE; x++) {
            const int i = y * SIZE + x;
            assert_int_equal(buildings[i], x >= 30 && x < 42 && y >= 22 && y < 42 ? 255 : 0);
            assert_int_equal(map[i], map[(SIZE - 1 - y) * SIZE + x]);
            const int open_sky = mz_radio_gray(mz_free_space_loss(hypot(x + 0.5 - from.x, y + 0.5 - from.y)));
            assert_true(map[i] <= open_sky);
            if (x < 28) // before the house nothing is lost
                assert_int_equal(map[i], open_sky);
        }
    // Behind it: two walls and 12 m inside straight on, or one of its corners, whichever is more.
    const int behind = map[32 * SIZE + 46];
    const double free_space = mz_free_space_loss(hypot(46.5 - from.x, 0.5)),
                 straight = free_space + 2 * 16.1 + 12 * 0.5;
    assert_true(mz_radio_loss(behind) < straight && mz_radio_loss(behind) > free_space + 14);
    assert_true(map[32 * SIZE + 60] > 0 && map[30 * SIZE + 35] == 0);
}

static void make(const char *out, int64_t maps, int threads) {
    const mz_radio_options o = {
        .maps = maps, .transmitters = 2, .size = SIZE, .extent = 128, .seed = 7, .threads = threads, .out = out};
    mz_radio_written w;
    assert_int_equal(mz_dir_remove(out), MEZZO_OK);
    if (mz_radio_write(&o, NULL, &w) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    assert_int_equal(w.pictures, maps * 5);
    assert_true(w.built_up > 0.02 && w.built_up < 0.8);
}

static void same_file(const char *a, const char *b, const char *name) {
    char path[128];
    mz_map x, y;
    snprintf(path, sizeof path, "%s/%s", a, name);
    assert_int_equal(mz_map_open(path, &x), MEZZO_OK);
    snprintf(path, sizeof path, "%s/%s", b, name);
    assert_int_equal(mz_map_open(path, &y), MEZZO_OK);
    assert_true(x.size == y.size && memcmp(x.data, y.data, x.size) == 0);
    mz_map_close(&x);
    mz_map_close(&y);
}

TEST(test_same_bytes) {
    const mz_radio_options o = {.maps = 1, .transmitters = 1, .size = SIZE, .extent = 128, .seed = 7, .out = "one"};
    mz_radio_written w;
    mz_dir_remove("one");
    if (mz_radio_write(&o, NULL, &w) == MEZZO_ERR_UNSUPPORTED)
        skip(); // no libpng
    make("one", 3, 1);
    make("two", 5, 2);
    for (int map = 0; map < 3; map++)
        for (int which = 0; which < 2; which++) {
            char name[64];
            snprintf(name, sizeof name, "gain/DPM/%d_%d.png", map, which);
            same_file("one", "two", name);
            snprintf(name, sizeof name, "png/antennas/%d_%d.png", map, which);
            same_file("one", "two", name);
        }
    assert_int_equal(mz_radio_write(&o, NULL, &w), MEZZO_ERR_INVALID); // not empty
    assert_non_null(strstr(mezzo_error_message(), "one"));
    const volatile sig_atomic_t stop = 1;
    mz_dir_remove("three");
    const mz_radio_options p = {.maps = 1, .transmitters = 1, .size = SIZE, .extent = 128, .seed = 7, .out = "three"};
    assert_int_equal(mz_radio_write(&p, &stop, &w), MEZZO_ERR_INTERRUPTED);
    assert_false(mz_path_exists("three/" MZ_RADIO_FILE));
}

TEST(test_cities) {
    uint8_t buildings[SIZE * SIZE];
    for (uint64_t map = 0; map < 20; map++) {
        mz_city city;
        assert_int_equal(mz_city_make(3, map, 128, &city), MEZZO_OK);
        mz_city_draw(&city, SIZE, buildings);
        for (uint64_t which = 0; which < 5; which++) {
            const mz_point at = mz_city_transmitter(&city, 3, map, which, SIZE, buildings);
            assert_int_equal(buildings[(int)(at.y / 2) * SIZE + (int)(at.x / 2)], 0);
        }
        mz_city_free(&city);
    }
}

TEST(test_memory) {
    uint8_t buildings[SIZE * SIZE], map[SIZE * SIZE];
    for (int64_t i = 0;; i += 3) {
        mz_city city;
        mz_field *field = NULL;
        mz_alloc_fail_after(i);
        mezzo_status status = mz_city_make(3, 1, 128, &city);
        if (status == MEZZO_OK) {
            mz_city_draw(&city, SIZE, buildings);
            status = mz_field_make(&city, SIZE, buildings, &field);
        }
        if (status == MEZZO_OK)
            status = mz_field_map(field, (mz_point){64, 64}, map);
        mz_alloc_fail_after(-1);
        mz_field_free(field);
        mz_city_free(&city);
        if (status == MEZZO_OK)
            break;
        assert_int_equal(status, MEZZO_ERR_MEMORY);
    }
}
