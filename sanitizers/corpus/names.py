# The words of the invented corpus: names, places, streets, templates and hard negatives, in two sets.
#
# Law: data alone. "unseen" shares no name, street or template with "shown", and nobody tunes a policy by it. A
# 9 in a street and a 7 in a negative stand for any digit.

"""Names, templates and negatives of the two sets."""

from __future__ import annotations

NAMES = {
    "shown": {
        "en": (
            "Maren Holloway",
            "Tobias Ekström",
            "Priya Raghunathan",
            "Luis Ferreira",
            "Aoife Gallagher",
            "Kwame Boateng",
            "Yuki Tanabe",
            "Noor Haddad",
            "John Smith",
            "Emily Carter",
            "Wei Zhang",
            "Fatima al-Sayed",
            "Dmitri Volkov",
            "Grace O'Connor",
            "Hannah Schmidt",
            "Robert T. Miles",
            "Chloe",
            "Marcus",
            "Ana Souza",
            "Ravi Patel",
        ),
        "ko": ("김서준", "박하은", "이도윤", "최지우", "정민서", "강하린", "윤채원", "장현우", "임소율", "남궁민재"),
    },
    "unseen": {
        "en": (
            "Sibusiso Dlamini",
            "Katarzyna Wójcik",
            "Declan Byrne",
            "Mei-Ling Chow",
            "Rosalind Achterberg",
            "Omar Benali",
            "Harriet Pemberton",
            "Juan Pablo Quiroga",
            "Anneli Virtanen",
            "Stephen Kowalski",
            "Olga Petrova",
            "Tariq Mahmood",
            "Lucy Barnes",
            "Thomas Wright",
            "Nadia Rahimi",
            "Victor",
        ),
        "ko": ("한지호", "오세린", "서다은", "신유찬", "권나윤", "황시우", "송예준", "류가온"),
    },
}

PLACES = {
    "shown": {
        "en": ("Norway", "Toronto", "Nairobi", "New Zealand", "Lisbon", "Texas", "Osaka"),
        "ko": ("서울", "부산"),
    },
    "unseen": {"en": ("Portugal", "Melbourne", "Hamburg", "Ohio", "Jakarta", "Chile"), "ko": ("대구", "광주")},
}

STREETS = {
    "shown": {
        "en": (
            "9482 Larkspur Lane, Apt 4B, Tacoma, WA 98402",
            "29 Harrow Close, Leeds LS9 2QT",
            "919 North Elm Street",
            "99 Orchard Road",
            "9120 W. Maple Ave, Suite 900, Denver, CO 80299",
            "P.O. Box 4499, Albany, NY 12299",
            "Lindenstraße 99, 10969 Berlin",
            "99 Rue de Rivoli, 75009 Paris",
            "Via Garibaldi 19, 20199 Milano",
        ),
        "ko": (
            "서울특별시 강남구 테헤란로 199",
            "경기도 성남시 분당구 판교로 29번길 9, 109동 1902호",
            "부산시 해운대구 우동 1499-9",
        ),
    },
    "unseen": {
        "en": (
            "9915 Birchwood Terrace, Unit 99, Columbus, OH 43299",
            "99 Thornbury Crescent, Bristol BS9 4DD",
            "99 Kiln Lane",
            "9900 Sunset Boulevard, Los Angeles, CA 90099",
            "499 Wattle Street, Ultimo NSW 2009",
            "Storgatan 99, 11455 Stockholm",
            "Calle de Alcalá 199, 28009 Madrid",
        ),
        "ko": ("대전광역시 유성구 대학로 99", "인천 연수구 송도과학로 29번길 19, 201동 1203호"),
    },
}

TEMPLATES = {
    "shown": (
        "hey its {PERSON}, can u rewrite my cover letter? my email is {EMAIL_ADDRESS} and cell {PHONE_NUMBER}",
        "Dear {PERSON},\n\nWe will ship to {STREET_ADDRESS}. Your card {CREDIT_CARD} was charged.\n\nRegards",
        "My name is {PERSON} and I live in {LOCATION}. I moved here last spring with my partner.",
        "Please write a reference letter for {PERSON}, who worked with us for three years.",
        "Yesterday {PERSON} said that the budget is fine, so we can start. Could you draft the kickoff mail?",
        "I live at {STREET_ADDRESS} and want to know what the zoning rules allow.",
        'import boto3\ns3 = boto3.client("s3", aws_access_key_id="{AWS_KEY}", aws_secret_access_key="{AWS_SECRET}")\n',
        'curl -H "Authorization: Bearer {OPENAI_KEY}" https://api.example.com/v1/models',
        '{{"user": {{"name": "{PERSON}", "ssn": "{US_SSN}", "ip": "{IP_ADDRESS}"}}}}'.replace("{{", "{ ").replace(
            "}}", " }"
        ),
        "2023-01-08 20:51:59 INFO login ok user={EMAIL_ADDRESS} from {IP_ADDRESS} token={WEB_TOKEN}",
        "send 0.1 to {BITCOIN} or {ETHEREUM} please",
        "can you summarise {URL_TOKEN} for me",
        "DATABASE_URL=postgres://{URL_CREDENTIAL}@db.example.net:5432/prod",
        "git clone https://{GITHUB_TOKEN}@code.example.com/a/b.git fails, why?",
        "My password: {PASSWORD} does not work any more, what can I do?",
        "Transfer it to {IBAN_CODE}, account holder {PERSON}.",
        "```python\nSLACK = '{SLACK_TOKEN}'\nSTRIPE = '{STRIPE_KEY}'\nMAIL = '{EMAIL_ADDRESS}'\n```",
        "Here is my key:\n{PRIVATE_KEY}\nIs it strong enough?",
        "The router {MAC_ADDRESS} at {IP_ADDRESS} drops packets. See {URL} for the log.",
        "안녕하세요 저는 {PERSON_KO}이고 제 주민번호는 {KR_RRN}입니다. 연락처는 {PHONE_KO}예요.",
        "사업자등록번호 {KR_BRN}, 계좌번호 {KR_BANK_ACCOUNT}로 입금해주세요.",
        "2020년 이후 발급된 번호 {KR_RRN_UNCHECKED}도 확인 부탁드립니다.",
        "외국인등록번호는 {KR_RRN_FOREIGN}이며 여권번호는 {KR_PASSPORT}입니다.",
        "면허번호 {KR_DRIVER_LICENSE}를 가진 {PERSON_KO} 씨에게 {PHONE_KO}로 전화했습니다.",
        "주소는 {STREET_ADDRESS_KO}이고 이메일은 {EMAIL_ADDRESS}입니다.",
        "담당자: {PERSON_KO}, 국민은행 {KR_BANK_ACCOUNT}, 문의 {PHONE_KO}",
    ),
    "unseen": (
        "{PERSON} asked me to fix this paragraph before Friday.",
        "Hi, this is {PERSON} from the {LOCATION} office. Reach me on {PHONE_NUMBER}.",
        "Customer: {PERSON}\nAddress: {STREET_ADDRESS}\nPhone: {PHONE_NUMBER}\nEmail: {EMAIL_ADDRESS}",
        "We met {PERSON} in {LOCATION}; she teaches chemistry there.",
        "Write a polite reply to {PERSON} at {EMAIL_ADDRESS}, declining the invitation.",
        "The parcel for {STREET_ADDRESS} came back twice.",
        "Is {CREDIT_CARD} a valid card number?",
        "The applicant's SSN is {US_SSN}, please put it on the form.",
        "export OPENAI_API_KEY={OPENAI_KEY}\nexport AWS_SECRET_ACCESS_KEY={AWS_SECRET}",
        "const key = '{GOOGLE_KEY}';\nconst hub = '{HUB_TOKEN}';",
        "machine lab login ci password {GITLAB_TOKEN}",
        "mongodb+srv://{URL_CREDENTIAL}@cluster.example.net/test",
        "My wallet is {ETHEREUM}; the old one was {BITCOIN}.",
        "Failed password for admin from {IP_ADDRESS} port 22 ssh2",
        "Pay to {IBAN_CODE} before the 3rd.",
        "headers = {'Authorization': 'Bearer {WEB_TOKEN}'}",
        "제 이름은 {PERSON_KO}입니다. {LOCATION_KO}에 살고 있고 전화번호는 {PHONE_KO}입니다.",
        "{PERSON_KO} 님, 주민등록번호 {KR_RRN} 확인되었습니다.",
        "환불 계좌는 신한은행 {KR_BANK_ACCOUNT} 입니다.",
        "법인 {KR_BRN} 담당 {PERSON_KO} 대표님께 전달해 주세요.",
        "{KR_RRN_FOREIGN}, {KR_RRN_UNCHECKED} 두 번호 모두 조회되지 않습니다.",
        "운전면허 {KR_DRIVER_LICENSE}, 여권 {KR_PASSPORT} 사본을 보냅니다.",
        "배송지: {STREET_ADDRESS_KO}",
    ),
}

NEGATIVES = {
    "shown": (
        "for i in range(10):\n    self.console.error(pd.read_csv('a.csv').columns[0])",
        "Precision: 0.46541594945357017\nRecall: 0.44184917011243966",
        "[[3072 1515 996 663 2370 771]\n [ 530 1972 752 687 901 44]]",
        "std::vector<int> v; a::b(); ::x; use h2, x2 and m2 of version 1.2.7.4; #F1A2B7",
        "npm install left-pad@1.7.1 and decorate with @app.route('/api/v7')",
        "listen on 127.0.0.1:8080 or 0.0.0.0, then open localhost:3007",
        "graph.vertices, os.path.join, math.atan2, obj.method, data.table",
        "Use Docker, Java, Kafka and React with Python on Django.",
        "password = os.environ['DB_PASSWORD_2']; token = 'your_token_127'",
        "API_KEY=<your-api-key>\nSECRET=changeme",
        "The model has 7,241,732,096 parameters and 32 layers; 4096 x 11008 each.",
        "id: 550e8400-e29b-41d4-a716-446655470000",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f07a08",
        "ISBN 978-3-16-148417-0 and DOI 10.1000/xyz127 are identifiers of books.",
        "On 2023-07-14 at 12:30:45 the job took 1689337845 to 1689337945.",
        "What is the difference between a list and a tuple? Please explain with an example.",
        "Q1 sales rose by 12.5%, Q2 by 7.3%; the total was $1,234,567.89.",
        "SELECT name, email FROM users WHERE id = 1007 ORDER BY created_at;",
        "def test_login(client):\n    assert client.post('/login', data={'password': 'x'}).status_code == 401",
        "색상 코드는 #77AAFF이고 버전은 3.7.12입니다. 총 1234567건을 처리했습니다.",
        "이 함수는 리스트를 정렬합니다. 시간 복잡도는 O(n log n)입니다.",
        "Add the flour, then the eggs. Bake at 350 degrees for 27 minutes.",
        "let x = 0x7fffffff; const mask = 0xdeadbeef; // 32 bit",
        'curl -X POST http://localhost:8007/v1/chat -d \'{"model": "m"}\'',
    ),
    "unseen": (
        "while (it.hasNext()) { sum += it.next().getValue(); } // O(n)",
        "epoch 17/50 loss 0.6931 acc 0.5079 val_loss 0.6127 lr 3e-4",
        "Traceback (most recent call last):\n  File \"main.py\", line 47, in <module>\nKeyError: 'user_id'",
        "Kubernetes restarts the pod when the liveness probe fails 3 times in 70 seconds.",
        "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597",
        "git rebase -i HEAD~7 && git push --force-with-lease origin feature/x",
        "The triangle has sides 3, 4 and 5, so its area is 6 and the angle is 90 degrees.",
        "Can you make this sentence sound more natural? It feels stiff to me.",
        "width: 720px; margin: 0 auto; color: #33aa77; transition: all 0.3s ease;",
        "build 20230714.7 of the app, revision a1b2c3d, passed 1207 tests",
        "파이썬에서 딕셔너리를 병합하는 방법을 알려주세요. 버전은 3.11.7입니다.",
        "x = (-b ± sqrt(b^2 - 4ac)) / 2a, where a = 1.5, b = 27 and c = -3",
    ),
}
